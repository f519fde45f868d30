"""Kimi Delta Attention: the gated delta rule with a gate for each channel of keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.delta import DeltaMixer, DeltaNames, Rows
from blockstride.models.modules.weights import LayerWeights

NAMES = DeltaNames(
    projections={
        "q_proj": "q",
        "k_proj": "k",
        "v_proj": "v",
        "g_a_proj": "z",
        "b_proj": "b",
        "f_a_proj": "a",
    },
    convolutions=("q_conv1d", "k_conv1d", "v_conv1d"),
    norm="o_norm",
    out="o_proj",
)


class KimiDeltaMixer(DeltaMixer):
    """A gated delta net whose decays are those of channels, and both gates of low rank.

    The projections in make as many numbers of a token for each gate as a head has channels, which
    every rank needs; those back to all heads are shared, as the heads are.

    Args:
        hidden_size: Width of the residual stream.
        num_heads: Heads, of queries, keys and values alike.
        head_dim: Elements of each.
        d_conv: Width of the convolutions.
        types: What the cache holds.
        eps: Added to the mean square in the norm.

    Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 3 and 4.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        d_conv: int,
        types: CacheTypes,
        *,
        eps: float,
    ) -> None:
        sizes = (num_heads, num_heads, head_dim, head_dim, d_conv)
        super().__init__(hidden_size, *sizes, types, eps=eps, names=NAMES)

    def gate_rows(self, values: Rows, by_head: Rows) -> dict[str, Rows]:
        """As many numbers of a token as a head has channels, on every rank."""
        narrow = (self.key_dim, Interval(0, self.key_dim))
        return {"z": narrow, "a": narrow}

    def load_gates(self, weights: LayerWeights, value: Interval, heads: Interval) -> None:
        """Reads the projections of both gates back to the rank's heads, and decays."""
        width, part, wide = self.num_value_heads * self.key_dim, Part(0, value), torch.float32
        self.decay_proj = weights.matrix("f_b_proj.weight", width, self.key_dim, part)
        self.gate_proj = weights.matrix("g_b_proj.weight", width, self.key_dim, part)
        self.dt_bias = weights.tensor("dt_bias", width, dtype=wide, part=part)
        shape = (1, 1, self.num_value_heads, 1)
        rate = weights.tensor("A_log", *shape, dtype=wide, part=Part(2, heads))
        self.A = -torch.exp(rate.view(-1, 1))

    def decay(self, a: Tensor) -> Tensor:
        """Logarithm of what a state keeps, one number for each channel of a head's keys."""
        steps = softplus(kernels.linear(a, self.decay_proj).float() + self.dt_bias)
        return steps.unflatten(1, (-1, self.key_dim)).mul_(self.A)

    def gated(self, y: Tensor, z: Tensor) -> Tensor:
        """What the rule gives, each head through a norm, times the sigmoid of its gate."""
        y = kernels.rms_norm(y, self.norm, self.eps, group_size=self.value_dim)
        return y.mul_(kernels.linear(z, self.gate_proj).sigmoid_())
