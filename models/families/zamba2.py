"""Zamba2: Mamba-2 in all layers, and attention beside it in some."""

from __future__ import annotations

from typing import Any

from blockstride.models.families.keys import anything, count, optional
from blockstride.models.families.roles import MAMBA2, HasAttention, HasMamba2


class Zamba2(HasAttention, HasMamba2):
    """Zamba2 (Zyphra 2024), whose attention is wider than the model."""

    layers = {**MAMBA2, "hybrid": ("attention", "mamba2")}
    block_types = anything(None, "layers_block_type", "layer_types")
    hidden_size = count(2560)
    num_hidden_layers = count(54)
    head_dim = optional(None, "head_dim", "attention_head_dim")
    attention_hidden_size = optional()
    d_state = count(64, "mamba_d_state")
    ssm_heads = count(8, "n_mamba_heads")
    ssm_head_dim = optional(None, "mamba_headdim")
    groups = count(1, "mamba_ngroups")

    def layer_types(self) -> list[Any]:
        """As listed."""
        return self.listed("block_types")

    @property
    def attention_width(self) -> int:
        """Elements of all query heads, where `head_dim` is left open."""
        width, expected = self.attention_hidden_size, "a positive integer in config.json"
        self.expect(width is not None, "attention_hidden_size", expected)
        return width or 0
