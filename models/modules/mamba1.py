"""Mamba-1 over a cache of states."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval, mamba1
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.convolution import Convolution
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights


class Mamba1Mixer(Mixer):
    """Mamba-1, as it was published or with norms of dt, B and C. Ranks share the channels.

    Args:
        hidden_size: Width of the residual stream.
        d_inner: Channels.
        d_state: State size of a channel.
        d_conv: Width of the convolution.
        dt_rank: Rank of the step-size projection.
        types: What the cache holds.
        eps: Added to the mean square in every norm; None for no norms.
        has_gains: Whether the norms have gains, as in Jamba, or none, as in Falcon-Mamba.
        has_conv_bias: Whether the convolution has a bias.
        has_proj_bias: Whether the projections in and out have one.
    """

    def __init__(
        self,
        hidden_size: int,
        d_inner: int,
        d_state: int,
        d_conv: int,
        types: CacheTypes,
        *,
        dt_rank: int,
        eps: float | None = None,
        has_gains: bool = True,
        has_conv_bias: bool = True,
        has_proj_bias: bool = False,
    ) -> None:
        self.hidden_size, self.d_inner, self.d_conv = hidden_size, d_inner, d_conv
        self.sizes, self.eps, self.has_gains = [dt_rank, d_state, d_state], eps, has_gains
        self.has_conv_bias, self.has_proj_bias = has_conv_bias, has_proj_bias
        self.spec = mamba1(d_inner, d_state, d_conv, **types.state)

    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's channels."""
        hidden_size, d_inner, (dt_rank, d_state, _) = self.hidden_size, self.d_inner, self.sizes
        self.parallel = tp = weights.parallel
        mine = tp.share("mamba_expand * hidden_size", d_inner)
        rows, columns = Part(0, mine), Part(1, mine)
        x_and_z = [mine, Interval(d_inner + mine.start, d_inner + mine.stop)]
        self.in_proj = weights.rows("in_proj.weight", x_and_z, 2 * d_inner, hidden_size)
        self.out_proj = weights.matrix("out_proj.weight", hidden_size, d_inner, columns)
        self.in_bias = self.out_bias = None
        if self.has_proj_bias:
            bias = weights.tensor("in_proj.bias", 2 * d_inner)
            self.in_bias = torch.cat([bias[slice(*part)] for part in x_and_z])
            self.out_bias = weights.addend("out_proj.bias", hidden_size)
        self.conv = Convolution(weights, [mine], d_inner, self.d_conv, self.has_conv_bias)
        self.x_proj = weights.matrix("x_proj.weight", dt_rank + 2 * d_state, d_inner, columns)
        self.dt_proj = weights.matrix("dt_proj.weight", d_inner, dt_rank, rows)
        self.gains = [
            weights.tensor(f"{name}_layernorm.weight", size)
            if self.has_gains
            else torch.ones(size, dtype=weights.dtype, device=weights.device)
            for name, size in zip(("dt", "b", "c"), self.sizes, strict=True)
            if self.eps is not None
        ]
        # the recurrence is float32 whatever the weights are
        wide = {"dtype": torch.float32, "part": rows}
        self.dt_bias = weights.tensor("dt_proj.bias", d_inner, **wide)
        self.A = -torch.exp(weights.tensor("A_log", d_inner, d_state, **wide))
        self.D = weights.tensor("D", d_inner, **wide)
        self.channels = mine.size

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves, then runs the recurrence from the cached state, and leaves the last there."""
        indices = batch.tables[self.group].state_indices
        x, z = kernels.linear(hidden, self.in_proj, self.in_bias).split(self.channels, dim=1)
        x = self.conv.forward(x, self.cache.conv_state, indices, batch)
        parts = self.parallel.all_reduce(kernels.linear(x, self.x_proj)).split(self.sizes, dim=1)
        if self.eps is not None:
            normed = zip(parts, self.gains, strict=True)
            parts = [kernels.rms_norm(part, gain, self.eps) for part, gain in normed]
        dt, B, C = parts
        ssm = (x, kernels.linear(dt, self.dt_proj), self.A, B, C, self.cache.ssm_state, indices)
        gates = {"D": self.D, "z": z, "dt_bias": self.dt_bias}
        if batch.is_decode:
            y = kernels.selective_state_update(*ssm, **gates)
        else:
            y = kernels.selective_scan(
                *ssm, batch.query_start_loc, batch.has_initial_state, **gates
            )
        return kernels.linear(y, self.out_proj, self.out_bias)
