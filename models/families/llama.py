"""Llama and Mistral: attention in every layer, over all tokens or the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockstride.models.families.keys import anything, count, optional, switch
from blockstride.models.families.transformer import Transformer
from blockstride.models.families.windows import HasWindow
from blockstride.models.modules import FeedForward, LayerWeights


class Llama(Transformer):
    """Llama (Meta 2023) and what is like it.

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias,
        mlp_bias: and whether those of the MLP do.
    """

    attention_bias = switch(False)
    mlp_bias = switch(False)

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {"has_bias": self.attention_bias}

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        return [self.mlp(weights, self.intermediate_size, has_bias=self.mlp_bias)]


class Mistral(HasWindow):
    """Mistral (2023), whose layers all have a window, or none of them."""

    intermediate_size = count(14336)
    max_position_embeddings = count(131072)
    num_key_value_heads = optional(8)
    sliding_window = anything(4096)
