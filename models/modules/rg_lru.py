"""Griffin's recurrent block over a cache of states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blockstride import kernels
from blockstride.layouts import Interval, rg_lru
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.convolution import Convolution
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights

# logarithm of the decay of a channel whose gate is open, for each unit of its parameter
SHARPNESS = -8.0


class RgLruMixer(Mixer):
    """A convolution and a real-gated linear recurrent unit, times a second branch through a GELU.

    Ranks share the heads.

    Args:
        hidden_size: Width of the residual stream.
        num_heads: Heads, within which gates see all channels.
        head_dim: Channels of a head.
        d_conv: Width of the convolution.
        types: What the cache holds.

    Source: De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention", 2.3 and 2.4.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, d_conv: int, types: CacheTypes
    ) -> None:
        self.hidden_size, self.d_conv = hidden_size, d_conv
        self.num_heads, self.head_dim = num_heads, head_dim
        self.spec = rg_lru(num_heads, head_dim, d_conv, **types.state)

    def load(self, weights: LayerWeights) -> None:
        """Joins both branches into one projection."""
        width, self.parallel = self.num_heads * self.head_dim, weights.parallel
        mine = self.parallel.share("num_attention_heads", width, unit=self.head_dim)
        self.channels, rows = mine.size, Part(0, mine)
        names = ("linear_x", "linear_y")
        self.in_proj = kernels.pack_weight(
            torch.cat(
                [
                    weights.tensor(f"{name}.weight", width, self.hidden_size, part=rows)
                    for name in names
                ]
            )
        )
        self.in_bias = torch.cat([weights.tensor(f"{n}.bias", width, part=rows) for n in names])
        self.out_proj = weights.matrix("linear_out.weight", self.hidden_size, width, Part(1, mine))
        self.out_bias = weights.addend("linear_out.bias", self.hidden_size)
        self.conv = Convolution(
            weights, [mine], width, self.d_conv, True, names=("conv_1d",), activation=None
        )
        self._load_unit(weights.under("rg_lru"), mine)

    def _load_unit(self, weights: LayerWeights, mine: Interval) -> None:
        """Gates, whose matrices are `[heads, channel in, channel out]`, and decays."""
        size, wide = self.head_dim, torch.float32
        heads = Part(0, Interval(mine.start // size, mine.stop // size))
        self.gates, self.biases = [], []
        for name in ("recurrent_gate", "input_gate"):
            shape = (self.num_heads, size, size)
            self.gates.append(weights.tensor(f"{name}_weight", *shape, part=heads))
            bias = weights.tensor(f"{name}_bias", *shape[:2], dtype=wide, part=heads)
            self.biases.append(bias.flatten())
        width = self.num_heads * size
        rate = weights.tensor("recurrent_param", width, dtype=wide, part=Part(0, mine))
        self.A = SHARPNESS * softplus(rate)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves, then runs the unit from the cached state, and leaves the last there."""
        indices = batch.tables[self.group].state_indices
        x, z = kernels.linear(hidden, self.in_proj, self.in_bias).split(self.channels, dim=1)
        x = self.conv.forward(x, self.cache.conv_state, indices, batch)
        recurrence_gate, input_gate = self._gates(x)
        unit = (x, recurrence_gate, input_gate, self.A, self.cache.ssm_state, indices)
        more = {"z": z, "recurrence_bias": self.biases[0], "input_bias": self.biases[1]}
        if batch.is_decode:
            y = kernels.rg_lru_update(*unit, **more)
        else:
            y = kernels.rg_lru(*unit, batch.query_start_loc, batch.has_initial_state, **more)
        return kernels.linear(y, self.out_proj, self.out_bias)

    def _gates(self, x: Tensor) -> Tensor:
        """Both gates of every channel before bias and sigmoid `[2, num_tokens, channels]`."""
        by_head = x.unflatten(1, (-1, self.head_dim)).transpose(0, 1)
        gates = x.new_empty(2, *x.shape)
        for gate, weight in zip(gates, self.gates, strict=True):
            # written where the kernel reads it, with the channels of all heads side by side
            places = gate.unflatten(1, (-1, self.head_dim)).transpose(0, 1)
            torch.bmm(by_head, weight, out=places)
        return gates
