"""Granite 4 hybrids: attention with or without positions, Mamba-2, experts beside an MLP."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.granite.config import GraniteHybridConfig
from blockstride.models.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import (
    ExpertMLP,
    FeedForward,
    GatedMLP,
    LayerWeights,
    Rotary,
)


class GraniteHybridModel(Mamba2Hybrid[GraniteHybridConfig]):
    """Granite 4 hybrid (IBM 2025), `granitemoehybrid` of transformers; see `HybridModel`."""

    config_type = GraniteHybridConfig
    feed_forward_norm = "post_attention_layernorm"
    final_norm = "norm"

    def configure(self, config: GraniteHybridConfig) -> None:
        """Sets multipliers and positions."""
        self.embedding_multiplier = config.embedding_multiplier
        self.residual_multiplier = config.residual_multiplier
        self.logits_divisor = config.logits_scaling
        self.attention_scale = config.attention_multiplier
        if config.position_embedding_type == "rope":
            size = config.head_size
            self.rotary = Rotary(size, size, config.rope_theta, self.device)

    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """An MLP that every token visits, and experts if there are any."""
        config, hidden = self.config, self.config.hidden_size
        names = ("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")
        inner = config.shared_intermediate_size
        shared = GatedMLP(*weights.joined_mlps(*names, (), hidden, inner))
        if config.num_local_experts == 0:
            return [shared]
        moe, count = "block_sparse_moe.", (config.num_local_experts,)
        # published files have the first names, those that transformers saves as it runs the others
        gate_up = weights.either(f"{moe}input_linear.weight", f"{moe}experts.gate_up_proj")
        down = weights.either(f"{moe}output_linear.weight", f"{moe}experts.down_proj")
        router = weights.either(f"{moe}router.layer.weight", f"{moe}router.weight")
        gate_ups, downs = weights.joined_mlps(
            gate_up, down, count, hidden, config.intermediate_size
        )
        experts = ExpertMLP(
            weights.tensor(router, *count, hidden),
            list(gate_ups),
            list(downs),
            config.num_experts_per_tok,
            is_renormalised=True,
        )
        return [experts, shared]
