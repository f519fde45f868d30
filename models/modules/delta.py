"""The gated delta net over a cache of states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blockstride import kernels
from blockstride.layouts import Interval, gated_delta_net
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.convolution import Convolution
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights

PROJECTED = "qkvzba"
"""What the projections in make of a token: query, key, value, gate, strength and decay."""

Rows: TypeAlias = tuple[int, Interval]
"""Rows of a projection on all ranks together, and those of this rank."""


@dataclass(frozen=True)
class DeltaNames:
    """What tensors of a gated delta net are called, and which of `PROJECTED` are in one.

    Attributes:
        projections: Name -> letters of `PROJECTED` whose rows follow each other.
        by_key_head: Whether those rows follow each other within each key head.
        convolutions: The convolution, or several that have its channels one after the other.
        norm: The gated norm.
        out: The projection out.
    """

    projections: Mapping[str, str] = field(
        default_factory=lambda: {
            "in_proj_qkv": "qkv",
            "in_proj_z": "z",
            "in_proj_b": "b",
            "in_proj_a": "a",
        }
    )
    by_key_head: bool = False
    convolutions: Sequence[str] = ("conv1d",)
    norm: str = "norm"
    out: str = "out_proj"


class DeltaMixer(Mixer):
    """Gated delta net: a convolution, the gated delta rule, and a gated norm of each head.

    Ranks share the value heads; they share key heads, too, where there are fewer than ranks.

    Args:
        hidden_size: Width of the residual stream.
        num_key_heads: Heads of queries and keys.
        num_value_heads: Heads of values; neighbours share a key head.
        key_dim: Elements of a query or key.
        value_dim: Elements of a value.
        d_conv: Width of the convolution.
        types: What the cache holds.
        eps: Added to the mean square in the norm.
        strength: How far a head may move at most towards its value; past 1 it may overshoot, which
            gives the state's transition negative eigenvalues.
        names: What tensors are called.

    Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 3; Grazzi et al.,
    "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues", 4, for the strength.
    """

    def __init__(
        self,
        hidden_size: int,
        num_key_heads: int,
        num_value_heads: int,
        key_dim: int,
        value_dim: int,
        d_conv: int,
        types: CacheTypes,
        *,
        eps: float,
        strength: float = 1.0,
        names: DeltaNames | None = None,
    ) -> None:
        self.hidden_size, self.d_conv, self.eps = hidden_size, d_conv, eps
        self.num_key_heads, self.num_value_heads = num_key_heads, num_value_heads
        self.key_dim, self.value_dim, self.strength = key_dim, value_dim, strength
        self.names = names or DeltaNames()
        sizes = (num_key_heads, num_value_heads, key_dim, value_dim, d_conv)
        self.spec = gated_delta_net(*sizes, **types.state)

    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's value heads, and the key heads that they share."""
        keys, values = self.num_key_heads * self.key_dim, self.num_value_heads * self.value_dim
        self.parallel = tp = weights.parallel
        key = tp.share("linear_num_key_heads", keys, unit=self.key_dim, is_replicated=True)
        value = tp.share("linear_num_value_heads", values, unit=self.value_dim)
        heads = Interval(value.start // self.value_dim, value.stop // self.value_dim)
        by_head = (self.num_value_heads, heads)
        extents = {"q": (keys, key), "k": (keys, key), "v": (values, value), "b": by_head}
        rows = extents | self.gate_rows((values, value), by_head)
        self.in_proj = kernels.pack_weight(self._projections(weights, rows))
        channels = [key, _after(keys, key), _after(2 * keys, value)]
        size = 2 * keys + values
        convolutions = self.names.convolutions
        self.conv = Convolution(weights, channels, size, self.d_conv, False, names=convolutions)
        self.out = weights.matrix(
            f"{self.names.out}.weight", self.hidden_size, values, Part(1, value)
        )
        # heads share it; a gate in rows of all heads is read in place
        self.norm = weights.tensor(f"{self.names.norm}.weight", self.value_dim).repeat(heads.size)
        self.conv_sizes = [key.size, key.size, value.size]
        self.sizes = [sum(self.conv_sizes), *(rows[letter][1].size for letter in "zba")]
        self.load_gates(weights, value, heads)

    def gate_rows(self, values: Rows, by_head: Rows) -> dict[str, Rows]:
        """What the projections in make of a gate z, and of a decay a.

        Args:
            values: Elements of all values, and those of this rank.
            by_head: Value heads, and those of this rank.
        """
        return {"z": values, "a": by_head}

    def load_gates(self, weights: LayerWeights, value: Interval, heads: Interval) -> None:
        """Reads what decays are made of, for the elements of values and the heads of this rank."""
        wide = {"dtype": torch.float32, "part": Part(0, heads)}
        self.dt_bias = weights.tensor("dt_bias", self.num_value_heads, **wide)
        self.A = -torch.exp(weights.tensor("A_log", self.num_value_heads, **wide))

    def _projections(self, weights: LayerWeights, rows: Mapping[str, Rows]) -> Tensor:
        """The rank's rows of all that is in `PROJECTED`, one after the other."""
        groups = self.num_key_heads if self.names.by_key_head else 1
        read: dict[str, Tensor] = {}
        for name, letters in self.names.projections.items():
            shape = (sum(rows[letter][0] for letter in letters), self.hidden_size)
            start = 0
            for letter in letters:
                extent, share = rows[letter]
                size = extent // groups
                own = _in_groups(share, size, shape[0] // groups, groups)
                parts = [Part(0, _after(start, part)) for part in own]
                read[letter] = torch.cat(
                    [weights.tensor(f"{name}.weight", *shape, part=part) for part in parts]
                )
                start += size
        return torch.cat([read[letter] for letter in PROJECTED])

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves, then runs the rule from the cached state, and leaves the last there."""
        indices = batch.tables[self.group].state_indices
        qkv, z, b, a = kernels.linear(hidden, self.in_proj).split(self.sizes, dim=1)
        qkv = self.conv.forward(qkv, self.cache.conv_state, indices, batch)
        q, k, v = qkv.split(self.conv_sizes, dim=1)
        beta = b.float().sigmoid()
        rule = (
            q.unflatten(1, (-1, self.key_dim)),
            k.unflatten(1, (-1, self.key_dim)),
            v.unflatten(1, (-1, self.value_dim)),
            self.decay(a),
            beta if self.strength == 1 else beta.mul_(self.strength),
            self.cache.ssm_state,
            indices,
        )
        if batch.is_decode:
            y = kernels.gated_delta_rule_update(*rule, qk_l2norm=True)
        else:
            starts, is_initial = batch.query_start_loc, batch.has_initial_state
            y = kernels.gated_delta_rule(*rule, starts, is_initial, qk_l2norm=True)
        return kernels.linear(self.gated(y.flatten(1), z), self.out)

    def decay(self, a: Tensor) -> Tensor:
        """Logarithm of what a state keeps: one number for each value head of a token."""
        return self.A * softplus(a.float() + self.dt_bias)

    def gated(self, y: Tensor, z: Tensor) -> Tensor:
        """What the rule gives, each head through a norm, then gated."""
        return kernels.rms_norm(
            y, self.norm, self.eps, gate=z, norm_before_gate=True, group_size=self.value_dim
        )


def _after(start: int, part: Interval) -> Interval:
    """The same part of what begins at `start`."""
    return Interval(start + part.start, start + part.stop)


def _in_groups(share: Interval, size: int, stride: int, groups: int) -> list[Interval]:
    """Where elements lie that are cut into groups of `size`, which begin every `stride`."""
    parts = []
    for group in range(groups):
        part = share.intersect(Interval(group * size, (group + 1) * size))
        if part.size:
            parts.append(_after(group * (stride - size), part))
    return parts
