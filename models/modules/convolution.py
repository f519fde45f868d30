"""The short convolution before a recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.batch import StepBatch
from blockstride.models.modules.weights import LayerWeights


class Convolution:
    """A causal depthwise convolution whose last inputs are cached.

    Args:
        weights: Tensors of this layer.
        parts: Channels of this rank, in the order in which it has them.
        channels: Channels of all ranks.
        d_conv: Its width.
        has_bias: Whether it has a bias.
        names: What tensors call it; several have its channels one after the other.
        activation: As of `kernels.causal_conv1d`.
    """

    def __init__(
        self,
        weights: LayerWeights,
        parts: Sequence[Interval],
        channels: int,
        d_conv: int,
        has_bias: bool,
        *,
        names: Sequence[str] = ("conv1d",),
        activation: Literal["silu"] | None = "silu",
    ) -> None:
        self.activation: Literal["silu"] | None = activation
        # taps outermost, so that a GPU loads those of neighbouring channels in wide words
        taps = weights.joined([f"{name}.weight" for name in names], channels, 1, d_conv).squeeze(1)
        self.taps = torch.cat([taps[slice(*part)] for part in parts]).T.contiguous().T
        self.bias = None
        if has_bias:
            bias = weights.joined([f"{name}.bias" for name in names], channels)
            self.bias = torch.cat([bias[slice(*part)] for part in parts])

    def forward(self, x: Tensor, state: Tensor, indices: Tensor, batch: StepBatch) -> Tensor:
        """What the new inputs, and the last ones before them, give."""
        if batch.is_decode:
            new = (x[:, None], self.taps, self.bias, state, indices)
            return kernels.causal_conv1d_update(*new, activation=self.activation)[:, 0]
        return kernels.causal_conv1d(
            x,
            self.taps,
            self.bias,
            state,
            indices,
            batch.query_start_loc,
            batch.has_initial_state,
            activation=self.activation,
        )
