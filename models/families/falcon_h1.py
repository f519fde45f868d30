"""Falcon-H1: attention and Mamba-2 side by side in every layer."""

from __future__ import annotations

from blockstride.models.families.keys import optional
from blockstride.models.families.roles import HasAttention, HasMamba2


class FalconH1(HasAttention, HasMamba2):
    """Falcon-H1 (TII 2025)."""

    layers = {"hybrid": ("attention", "mamba2")}
    num_key_value_heads = optional(8)
    d_inner = optional(1024, "mamba_d_ssm")

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["hybrid"] * self.num_hidden_layers
