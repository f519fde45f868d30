"""Bamba: attention with partly rotary positions, Mamba-2, MLPs."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.keys import anything, constant, count, number, optional, switch
from blockstride.models.families.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import FeedForward, GatedMLP, LayerWeights


class Bamba(Mamba2Hybrid):
    """Bamba (IBM, Princeton, CMU and UIUC 2024).

    Attributes:
        attn_layer_indices: Layers with attention; None for none.
        mlp_bias: Whether the projections of the MLP have a bias; only False exists.
    """

    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"
    turning_share = constant(0.5)
    vocab_size = count(128000)
    intermediate_size = count(14336)
    num_key_value_heads = optional(8)
    attn_layer_indices = anything()
    mlp_bias = switch(False)
    rms_norm_eps = number(1e-5)
    max_position_embeddings = count(262144)

    def layer_types(self) -> list[str]:
        """Attention in the layers that are named, Mamba-2 in the rest."""
        return self.indexed("attn_layer_indices", "mamba")

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        self.expect(not self.mlp_bias, "mlp_bias", "false")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        sizes = (self.hidden_size, self.intermediate_size)
        return [GatedMLP(*weights.gated_mlp("feed_forward.", *sizes))]
