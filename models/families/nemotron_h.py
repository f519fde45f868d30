"""Nemotron-H: layers of one part each, a mixer or a feed-forward part."""

from __future__ import annotations

from typing import Any

from blockstride.models.families.keys import anything, constant, count, optional
from blockstride.models.families.roles import ATTENTION, MAMBA2, HasAttention, HasMamba2

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""What `hybrid_override_pattern` writes for a layer."""


class NemotronH(HasAttention, HasMamba2):
    """Nemotron-H (NVIDIA 2025). The list of its layers tells their number."""

    layers = {**ATTENTION, **MAMBA2, "mlp": (), "moe": ()}
    block_types = anything(None, "layers_block_type", "layer_types")
    hybrid_override_pattern = anything("ME*-")
    num_key_value_heads = optional(8)
    head_dim = optional(128, "head_dim", "attention_head_dim")
    d_state = count(128, "ssm_state_size")
    d_conv = count(4, "mamba_d_conv", "conv_kernel")
    # its own "expand" does not tell the width of its mixers
    expand = constant(None)
    ssm_heads = count(128, "mamba_num_heads")
    ssm_head_dim = optional(64, "mamba_head_dim")
    groups = count(8, "mamba_n_groups", "n_groups")

    def layer_types(self) -> list[Any]:
        """As listed, or else a letter for every layer."""
        if self.block_types is not None:
            return self.as_list("block_types")
        pattern, name = self.hybrid_override_pattern, "hybrid_override_pattern"
        known = isinstance(pattern, str) and set(pattern) <= set(LETTERS)
        self.expect(known, name, f"a string of {', '.join(LETTERS)} without layer_types")
        return [LETTERS[letter] for letter in pattern]
