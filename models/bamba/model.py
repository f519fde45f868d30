"""Bamba: attention with partly rotary positions, Mamba-2, MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockstride.models.bamba.config import BambaConfig
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.modules import (
    AttentionMixer,
    FeedForward,
    GatedMLP,
    LayerWeights,
    Mamba2Mixer,
    Mixer,
    Rotary,
)

PARTIAL_ROTARY_FACTOR = 0.5
"""Of the elements of a head, those that turn, where a config says nothing."""


class BambaModel(HybridModel[BambaConfig]):
    """Bamba (IBM, Princeton, CMU and UIUC 2024); see `HybridModel`."""

    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"

    def read_config(self, values: Mapping[str, Any]) -> None:
        """Sets `config`, and positions."""
        self.config = BambaConfig.from_dict(values)
        values = {"partial_rotary_factor": PARTIAL_ROTARY_FACTOR, **values}
        self.rotary = Rotary.from_config(values, self.config.head_size, self.device)

    def make_mixer(self, layer: int, weights: LayerWeights) -> Mixer:
        """Attention where the config says so, Mamba-2 elsewhere."""
        config = self.config
        if layer in config.attn_layer_indices:
            return AttentionMixer(
                weights,
                config.hidden_size,
                config.num_attention_heads,
                config.num_key_value_heads,
                config.head_size,
                dtype=self.dtypes.kv,
                rotary=self.rotary,
                has_bias=config.attention_bias,
            )
        return Mamba2Mixer(
            weights,
            config.hidden_size,
            config.mamba_n_heads,
            config.d_inner // config.mamba_n_heads,
            config.mamba_d_state,
            config.mamba_d_conv,
            n_groups=config.mamba_n_groups,
            eps=config.rms_norm_eps,
            dtypes=self.dtypes,
            conv_order=self.conv_order,
            has_conv_bias=config.mamba_conv_bias,
            has_proj_bias=config.mamba_proj_bias,
        )

    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        config = self.config
        return [
            GatedMLP(
                *weights.gated_mlp("feed_forward.", config.hidden_size, config.intermediate_size)
            )
        ]
