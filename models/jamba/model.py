"""Jamba: attention without positions, Mamba-1, MLPs and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from blockstride.models.hybrid_model import HybridModel
from blockstride.models.jamba.config import JambaConfig
from blockstride.models.modules import (
    AttentionMixer,
    ExpertMLP,
    FeedForward,
    GatedMLP,
    LayerWeights,
    Mamba1Mixer,
    Mixer,
)


class JambaModel(HybridModel[JambaConfig]):
    """Jamba (Lieber et al. 2024); see `HybridModel`."""

    config_type = JambaConfig
    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"

    def make_mixer(self, layer: int, weights: LayerWeights) -> Mixer:
        """Attention in one layer of each period, Mamba-1 in the others."""
        config = self.config
        if config.has_attention(layer):
            return AttentionMixer(
                weights,
                config.hidden_size,
                config.num_attention_heads,
                config.num_kv_heads,
                config.head_size,
                dtype=self.dtypes.kv,
            )
        return Mamba1Mixer(
            weights,
            config.hidden_size,
            config.d_inner,
            config.mamba_d_state,
            config.mamba_d_conv,
            dt_rank=config.dt_rank,
            eps=config.rms_norm_eps,
            dtypes=self.dtypes,
            conv_order=self.conv_order,
            has_conv_bias=config.mamba_conv_bias,
            has_proj_bias=config.mamba_proj_bias,
        )

    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP, or experts."""
        config, sizes = self.config, (self.config.hidden_size, self.config.intermediate_size)
        if not config.has_experts(layer):
            return [GatedMLP(*weights.gated_mlp("feed_forward.", *sizes))]
        router = weights.tensor(
            "feed_forward.router.weight", config.num_experts, config.hidden_size
        )
        gate_up, down = self._experts(weights)
        return [ExpertMLP(router, gate_up, down, config.num_experts_per_tok, is_renormalised=False)]

    def _experts(self, weights: LayerWeights) -> Sequence[Sequence[Tensor]]:
        """Gate and up, and down, of each expert; files have them one by one, or all in one."""
        count, sizes = (
            self.config.num_experts,
            (self.config.hidden_size, self.config.intermediate_size),
        )
        names = [f"feed_forward.experts.{name}" for name in ("gate_up_proj", "down_proj")]
        if weights.prefix + names[0] in weights.checkpoint:
            joined = weights.joined_mlps(names[0], names[1], (count,), *sizes)
            return [list(part) for part in joined]
        apart = [weights.gated_mlp(f"feed_forward.experts.{i}.", *sizes) for i in range(count)]
        return list(zip(*apart, strict=True))
