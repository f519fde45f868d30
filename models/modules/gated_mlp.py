"""The gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.models.batch import StepBatch
from blockstride.models.modules.module import FeedForward

# tokens whose inner activations stay in a CPU's cache, and in malloc's heap, between products
CPU_TOKENS = 512


class GatedMLP(FeedForward):
    """`down(silu(gate(x)) * up(x))`, gate and up joined into one projection.

    Args:
        gate_up: Gate, then up, of this rank `[2 * inner, hidden_size]`.
        down: `[hidden_size, inner]`.
    """

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self.gate_up, self.down = kernels.pack_weight(gate_up), kernels.pack_weight(down)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """The MLP of each token."""
        if hidden.is_cpu and len(hidden) > CPU_TOKENS:
            return torch.cat([self._mlp(tokens) for tokens in hidden.split(CPU_TOKENS)])
        return self._mlp(hidden)

    def _mlp(self, hidden: Tensor) -> Tensor:
        return kernels.linear(kernels.silu_and_mul(kernels.linear(hidden, self.gate_up)), self.down)
