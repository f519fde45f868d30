"""Bamba: attention with partly rotary positions, Mamba-2, MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockstride.models.bamba.config import BambaConfig
from blockstride.models.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import (
    FeedForward,
    GatedMLP,
    LayerWeights,
    Rotary,
)

PARTIAL_ROTARY_FACTOR = 0.5
"""Of the elements of a head, those that turn, where a config says nothing."""


class BambaModel(Mamba2Hybrid[BambaConfig]):
    """Bamba (IBM, Princeton, CMU and UIUC 2024); see `HybridModel`."""

    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"

    def read_config(self, values: Mapping[str, Any]) -> None:
        """Sets `config`, and positions."""
        self.config = BambaConfig.from_dict(values)
        values = {"partial_rotary_factor": PARTIAL_ROTARY_FACTOR, **values}
        self.rotary = Rotary.from_config(values, self.config.head_size, self.device)

    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        config = self.config
        return [
            GatedMLP(
                *weights.gated_mlp("feed_forward.", config.hidden_size, config.intermediate_size)
            )
        ]
