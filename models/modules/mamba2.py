"""Mamba-2 over a cache of states."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride import kernels
from blockstride.layouts import Interval, mamba2
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.convolution import Convolution
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights


class Mamba2Mixer(Mixer):
    """Mamba-2: one decay a head, B and C shared by groups of heads, a gate and a norm at the end.

    Ranks share the heads; they share groups, too, where there are fewer groups than ranks.

    Args:
        hidden_size: Width of the residual stream.
        num_heads: Heads of the recurrence.
        head_dim: Channels of a head.
        d_state: State size of a channel.
        d_conv: Width of the convolution.
        n_groups: Groups of heads.
        eps: Added to the mean square in the norm.
        types: What the cache holds.
        has_conv_bias: Whether the convolution has a bias.
        has_proj_bias: Whether the projection in has one.
        has_out_bias: Whether the projection out has one; as that in when None.
        has_norm: Whether there is a norm, of each group of channels.
        norm_before_gate: Whether the norm comes before the gate.
        step_limit: Lowest and highest step of the recurrence.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        d_state: int,
        d_conv: int,
        types: CacheTypes,
        *,
        n_groups: int,
        eps: float = 1e-5,
        has_conv_bias: bool = True,
        has_proj_bias: bool = False,
        has_out_bias: bool | None = None,
        has_norm: bool = True,
        norm_before_gate: bool = False,
        step_limit: tuple[float, float] = (0.0, inf),
    ) -> None:
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, head_dim
        self.d_state, self.d_conv, self.num_groups, self.eps = d_state, d_conv, n_groups, eps
        self.has_conv_bias, self.has_proj_bias = has_conv_bias, has_proj_bias
        self.has_out_bias = has_proj_bias if has_out_bias is None else has_out_bias
        self.has_norm, self.norm_before_gate = has_norm, norm_before_gate
        self.step_limit = None if step_limit == (0.0, inf) else step_limit
        self.spec = mamba2(num_heads, head_dim, d_state, d_conv, n_groups=n_groups, **types.state)

    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's heads, and the groups that they are in."""
        hidden_size, num_heads, head_dim = self.hidden_size, self.num_heads, self.head_dim
        d_state, n_groups = self.d_state, self.num_groups
        self.parallel = tp = weights.parallel
        inner, shared = num_heads * head_dim, n_groups * d_state
        x = tp.share("mamba_n_heads", inner, unit=head_dim)
        heads = Interval(x.start // head_dim, x.stop // head_dim)
        group = tp.share("mamba_n_groups", shared, unit=d_state, is_replicated=True)
        conv = [x, _after(inner, group), _after(inner + shared, group)]
        total = inner + 2 * shared
        # z, then what is convolved, then dt
        parts = [x, *(_after(inner, part) for part in conv), _after(inner + total, heads)]
        rows = inner + total + num_heads
        self.in_proj = weights.rows("in_proj.weight", parts, rows, hidden_size)
        self.out_proj = weights.matrix("out_proj.weight", hidden_size, inner, Part(1, x))
        self.in_bias = self.out_bias = None
        if self.has_proj_bias:
            bias = weights.tensor("in_proj.bias", rows)
            self.in_bias = torch.cat([bias[slice(*part)] for part in parts])
        if self.has_out_bias:
            self.out_bias = weights.addend("out_proj.bias", hidden_size)
        self.conv = Convolution(weights, conv, total, self.d_conv, self.has_conv_bias)
        wide = {"dtype": torch.float32, "part": Part(0, heads)}
        self.dt_bias = weights.tensor("dt_bias", num_heads, **wide)
        self.A = -torch.exp(weights.tensor("A_log", num_heads, **wide))
        self.D = weights.tensor("D", num_heads, **wide)
        if self.has_norm:
            self.gain = weights.tensor("norm.weight", inner, part=Part(0, x))
        self.group_size, self.first_group = inner // n_groups, group.start // d_state
        self.heads = heads.size
        self.sizes = [x.size, x.size + 2 * group.size, heads.size]
        self.conv_sizes = [x.size, group.size, group.size]

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves, then runs the recurrence from the cached state, and leaves the last there."""
        indices = batch.tables[self.group].state_indices
        projected = kernels.linear(hidden, self.in_proj, self.in_bias)
        z, x, dt = projected.split(self.sizes, dim=1)
        dt, step = self._steps(dt)
        x = self.conv.forward(x, self.cache.conv_state, indices, batch)
        x, B, C = x.split(self.conv_sizes, dim=1)
        ssm = (
            x.unflatten(1, (self.heads, self.head_dim)),
            dt,
            self.A,
            B.unflatten(1, (-1, self.d_state)),
            C.unflatten(1, (-1, self.d_state)),
            self.cache.ssm_state,
            indices,
        )
        if not self.has_norm:
            step["z"] = z.unflatten(1, (self.heads, self.head_dim))
        if batch.is_decode:
            y = kernels.ssd_state_update(*ssm, D=self.D, **step)
        else:
            y = kernels.ssd_scan(
                *ssm,
                batch.query_start_loc,
                batch.has_initial_state,
                D=self.D,
                **step,
            )
        y = y.flatten(1)
        return kernels.linear(
            self._norm(y, z) if self.has_norm else y, self.out_proj, self.out_bias
        )

    def _steps(self, dt: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Steps of the recurrence, and what a kernel has still to do to them.

        Hardly a model limits them, so kernels don't: one that does pays two small passes more.
        """
        if self.step_limit is None:
            return dt, {"dt_bias": self.dt_bias}
        return softplus(dt.float() + self.dt_bias).clamp(*self.step_limit), {"dt_softplus": False}

    def _norm(self, y: Tensor, z: Tensor) -> Tensor:
        """Gates, and normalises group by group, also where ranks have parts of a group each."""
        if self.group_size <= y.shape[1]:
            how = {"norm_before_gate": self.norm_before_gate, "group_size": self.group_size}
            return kernels.rms_norm(y, self.gain, self.eps, gate=z, **how)
        gate, normed = silu(z.float()), y.float()
        if not self.norm_before_gate:
            normed *= gate
        squares = normed.new_zeros(len(y), self.num_groups)
        squares[:, self.first_group] = normed.square().sum(1)
        mean = self.parallel.all_reduce(squares)[:, self.first_group, None] / self.group_size
        normed = normed * torch.rsqrt(mean + self.eps) * self.gain
        return (normed * gate if self.norm_before_gate else normed).to(y.dtype)


def _after(start: int, part: Interval) -> Interval:
    """The same part of what begins at `start`."""
    return Interval(start + part.start, start + part.stop)
