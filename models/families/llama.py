"""Llama, Mistral and Mixtral: attention in every layer, over all tokens or the last ones."""

from __future__ import annotations

from blockstride.models.families.keys import optional
from blockstride.models.families.roles import HasAttention
from blockstride.models.families.windows import HasWindow


class Llama(HasAttention):
    """Llama (Meta 2023) and what is like it."""

    layers = {"full_attention": ("attention",)}

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["full_attention"] * self.num_hidden_layers


class Mistral(HasWindow):
    """Mistral (2023)."""

    num_key_value_heads = optional(8)
    sliding_window = optional(4096)


class Mixtral(HasWindow):
    """Mixtral (Mistral 2024)."""

    num_key_value_heads = optional(8)
