"""LFM2 with experts, each scored by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from blockstride.models.families.keys import (
    anything,
    constant,
    count,
    is_whole,
    number,
    switch,
)
from blockstride.models.families.lfm2 import MLP, Lfm2
from blockstride.models.modules import ExpertMLP, FeedForward, LayerWeights, Router


class Lfm2Moe(Lfm2):
    """LFM2 with experts (Liquid AI 2025).

    Attributes:
        num_dense_layers: The first layers, which have one MLP; the others have experts.
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        moe_intermediate_size: Inner width of one.
        use_expert_bias: Whether scores are corrected where experts are chosen.
        norm_topk_prob: Whether the weights of the experts that a token visits add up to one.
        routed_scaling_factor: What they are multiplied by in the end.
    """

    hidden_size = count(2048)
    intermediate_size = count(7168)
    block_auto_adjust_ff_dim = constant(False)
    block_ffn_dim_multiplier = constant(1.0)
    block_multiple_of = constant(1)
    full_attn_idxs = constant(None)
    num_dense_layers = anything(2)
    num_experts = count(32)
    num_experts_per_tok = count(4)
    moe_intermediate_size = count(1792)
    use_expert_bias = switch(True)
    norm_topk_prob = switch(True)
    routed_scaling_factor = number(1.0)

    def layer_types(self) -> list[Any]:
        """As listed."""
        return self.listed("listed_types")

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        dense, most = self.num_dense_layers, self.num_experts
        self.expect(is_whole(dense) and dense >= 0, "num_dense_layers", "a number of layers")
        self.expect(self.num_experts_per_tok <= most, "num_experts_per_tok", f"at most {most}")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP in the first layers, experts in the others."""
        if layer < self.num_dense_layers:
            return super().feed_forward(layer, weights)
        hidden, experts, moe = self.hidden_size, self.num_experts, weights.under("feed_forward")
        correction = None
        if self.use_expert_bias:
            correction = moe.tensor("expert_bias", experts, dtype=torch.float32)
        router = Router(
            moe.tensor("gate.weight", experts, hidden),
            self.num_experts_per_tok,
            is_renormalised=self.norm_topk_prob,
            is_sigmoid=True,
            correction=correction,
            scale=self.routed_scaling_factor,
            floor=1e-6,
        )
        inner = self.moe_intermediate_size
        return [ExpertMLP(router, *moe.experts("experts.", experts, hidden, inner, MLP))]
