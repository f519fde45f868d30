"""A gated short convolution over a cache of its last inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval, short_conv
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.convolution import Convolution
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights


class ShortConvMixer(Mixer):
    """`out(C * convolution(B * x))`, where one projection gives B, C and x.

    Ranks share the channels.

    Args:
        hidden_size: Width of the residual stream, and channels.
        d_conv: Width of the convolution.
        types: What the cache holds.
        has_bias: Whether the convolution and the projections in and out have one.

    Source: Liquid AI, "LFM2 Technical Report", 2.
    """

    def __init__(
        self, hidden_size: int, d_conv: int, types: CacheTypes, *, has_bias: bool = False
    ) -> None:
        self.hidden_size, self.d_conv, self.has_bias = hidden_size, d_conv, has_bias
        how = {"conv_dtype": types.conv, "conv_order": types.conv_order}
        self.spec = short_conv(hidden_size, d_conv, **how)

    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's channels."""
        size, self.parallel = self.hidden_size, weights.parallel
        mine = self.parallel.share("hidden_size", size)
        parts = [Interval(i * size + mine.start, i * size + mine.stop) for i in range(3)]
        self.in_proj = weights.rows("in_proj.weight", parts, 3 * size, size)
        self.out_proj = weights.matrix("out_proj.weight", size, size, Part(1, mine))
        self.in_bias = self.out_bias = None
        if self.has_bias:
            bias = weights.tensor("in_proj.bias", 3 * size)
            self.in_bias = torch.cat([bias[slice(*part)] for part in parts])
            self.out_bias = weights.addend("out_proj.bias", size)
        how = {"names": ("conv",), "activation": None}
        self.conv = Convolution(weights, [mine], size, self.d_conv, self.has_bias, **how)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves what one gate lets in, and lets out what the other does."""
        indices = batch.tables[self.group].state_indices
        B, C, x = kernels.linear(hidden, self.in_proj, self.in_bias).chunk(3, dim=1)
        y = self.conv.forward(B * x, self.cache.arrays["conv"], indices, batch)
        return kernels.linear(y.mul_(C), self.out_proj, self.out_bias)
