"""MLPs that every token visits, with a gate and without."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.models.batch import StepBatch
from blockstride.models.modules.module import FeedForward

# tokens whose inner activations stay in a CPU's cache, and in malloc's heap, between products
CPU_TOKENS = 512


class MLP(FeedForward):
    """`down(relu(up(x)) ** 2)`, or with a gate as `GatedMLP` has it.

    Args:
        up: The first matrix, of this rank `[inner, hidden_size]`.
        down: The second `[hidden_size, inner]`.
        up_bias: Added to the first product.
        down_bias: Added to the second; None on all ranks but one.
        token_gate: One row `[1, hidden_size]`; what a token gets is multiplied by the sigmoid of
            its product with it. None for no such gate.

    Source: So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 4.
    """

    gate: kernels.Gate | None = None

    def __init__(
        self,
        up: Tensor,
        down: Tensor,
        *,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        token_gate: Tensor | None = None,
    ) -> None:
        self.up, self.down = kernels.pack_weight(up), kernels.pack_weight(down)
        self.up_bias, self.down_bias, self.token_gate = up_bias, down_bias, token_gate

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """The MLP of each token."""
        if hidden.is_cpu and len(hidden) > CPU_TOKENS:
            return torch.cat([self._mlp(tokens) for tokens in hidden.split(CPU_TOKENS)])
        return self._mlp(hidden)

    def _mlp(self, hidden: Tensor) -> Tensor:
        inner = kernels.linear(hidden, self.up, self.up_bias)
        if self.gate is None:
            inner = inner.relu_().square_()
        else:
            inner = kernels.gate_and_mul(inner, self.gate)
        out = kernels.linear(inner, self.down, self.down_bias)
        if self.token_gate is not None:
            out *= kernels.linear(hidden, self.token_gate).sigmoid()
        return out


class GatedMLP(MLP):
    """`down(silu(gate(x)) * up(x))`, gate and up joined into one projection.

    Args:
        gate_up: Gate, then up, of this rank `[2 * inner, hidden_size]`.
        down: `[hidden_size, inner]`.
        gate: The activation of the gate.
        more: As `MLP` has it by keyword.

    Source: Shazeer, "GLU Variants Improve Transformer", 2.
    """

    def __init__(
        self,
        gate_up: Tensor,
        down: Tensor,
        *,
        gate: kernels.Gate = kernels.SILU,
        **more: Tensor | None,
    ) -> None:
        super().__init__(gate_up, down, **more)
        self.gate = gate
