"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from blockstride import kernels
from blockstride.models.batch import StepBatch
from blockstride.models.modules.latent import Latent
from blockstride.models.modules.module import FeedForward
from blockstride.models.modules.router import Router


class ExpertMLP(FeedForward):
    """Each token visits the experts that its router chooses.

    Args:
        router: Chooses them.
        up: The first matrix of each expert, of this rank: gate, then up projection
            `[2 * inner, hidden_size]`, or up alone where there is no gate.
        down: The second `[hidden_size, inner]`.
        gate: As of `kernels.expert_mlp`.
        up_bias: Added to the first product of each expert `[num_experts, rows of up]`.
        down_bias: Added to the second `[num_experts, hidden_size]`; None on all ranks but one.
        latent: The space that experts see tokens in; None for that of the router.
    """

    def __init__(
        self,
        router: Router,
        up: Sequence[Tensor],
        down: Sequence[Tensor],
        *,
        gate: kernels.Gate | None = kernels.SILU,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        latent: Latent | None = None,
    ) -> None:
        self.router, self.gate, self.latent = router, gate, latent
        self.up_bias, self.down_bias = up_bias, down_bias
        self.up, self.down = kernels.pack_experts(up), kernels.pack_experts(down)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """The weighted sum of each token's experts."""
        ids, weights = self.router.choose(hidden)
        out = kernels.expert_mlp(
            hidden if self.latent is None else self.latent.enter(hidden),
            self.up,
            self.down,
            ids,
            weights,
            gate=self.gate,
            up_bias=self.up_bias,
            down_bias=self.down_bias,
        )
        return out if self.latent is None else self.latent.leave(out)
