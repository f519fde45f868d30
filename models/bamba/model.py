"""Bamba: attention with partly rotary positions, Mamba-2, MLPs."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.bamba.config import BambaConfig
from blockstride.models.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import (
    FeedForward,
    GatedMLP,
    LayerWeights,
    Rotary,
)


class BambaModel(Mamba2Hybrid[BambaConfig]):
    """Bamba (IBM, Princeton, CMU and UIUC 2024); see `HybridModel`."""

    config_type = BambaConfig
    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"

    def configure(self, config: BambaConfig) -> None:
        """Sets positions."""
        size = int(config.head_size * config.partial_rotary_factor)
        self.rotary = Rotary(size, config.head_size, config.rope_theta, self.device)

    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        config = self.config
        return [
            GatedMLP(
                *weights.gated_mlp("feed_forward.", config.hidden_size, config.intermediate_size)
            )
        ]
