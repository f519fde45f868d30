"""Granite 4 hybrids: attention with or without positions, Mamba-2, experts beside an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockstride.layouts import Interval
from blockstride.models.checkpoint import Part
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
        config = self.config
        gate_up, down = _joined(weights, "shared_mlp.", (), config.shared_intermediate_size, config)
        shared = GatedMLP(gate_up, down)
        if config.num_local_experts == 0:
            return [shared]
        count = (config.num_local_experts,)
        gate_ups, downs = _joined(
            weights, "block_sparse_moe.", count, config.intermediate_size, config
        )
        router = weights.tensor("block_sparse_moe.router.layer.weight", *count, config.hidden_size)
        experts = ExpertMLP(
            router, list(gate_ups), list(downs), config.num_experts_per_tok, is_renormalised=True
        )
        return [experts, shared]


def _joined(
    weights: LayerWeights,
    prefix: str,
    count: tuple[int, ...],
    inner: int,
    config: GraniteHybridConfig,
) -> tuple[Tensor, Tensor]:
    """A rank's part of gate and up, which are stored as one matrix (a stack of them), and down."""
    hidden, dim = config.hidden_size, len(count)
    share = weights.parallel.share(f"{prefix}intermediate_size", inner)
    parts = [
        weights.tensor(
            f"{prefix}input_linear.weight", *count, 2 * inner, hidden, part=Part(dim, interval)
        )
        for interval in (share, Interval(inner + share.start, inner + share.stop))
    ]
    down = weights.tensor(
        f"{prefix}output_linear.weight", *count, hidden, inner, part=Part(dim + 1, share)
    )
    return torch.cat(parts, dim=dim), down
