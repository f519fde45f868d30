"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from blockstride import kernels
from blockstride.models.batch import StepBatch
from blockstride.models.modules.module import FeedForward


class ExpertMLP(FeedForward):
    """Each token visits the experts that its router finds most likely.

    Args:
        router: One row for each expert `[num_experts, hidden_size]`.
        gate_up: Of each expert; see `GatedMLP`.
        down: Likewise.
        top_k: Experts that a token visits.
        is_renormalised: Whether the weights of the experts that a token visits add up to one; else
            they are the router's probabilities over all experts.
    """

    def __init__(
        self,
        router: Tensor,
        gate_up: Sequence[Tensor],
        down: Sequence[Tensor],
        top_k: int,
        *,
        is_renormalised: bool,
    ) -> None:
        self.router, self.top_k, self.is_renormalised = router, top_k, is_renormalised
        self.gate_up, self.down = kernels.pack_experts(gate_up), kernels.pack_experts(down)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """The weighted sum of each token's experts."""
        scores = kernels.linear(hidden, self.router).float()
        if self.is_renormalised:
            chosen, ids = scores.topk(self.top_k, dim=-1)
            weights = chosen.softmax(-1)
        else:
            weights, ids = scores.softmax(-1).topk(self.top_k, dim=-1)
        weights = weights.to(hidden.dtype)
        return kernels.expert_mlp(hidden, self.gate_up, self.down, ids, weights)
