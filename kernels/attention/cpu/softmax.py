"""What the two ways of attending share: the options of a softmax, and what a row may not see."""

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from blockstride.kernels.common.cpu.lanes import LANES, ZERO
from blockstride.kernels.common.cpu.native import inlined
from blockstride.kernels.common.cpu.vector_math import tanh

INFINITY = np.float32(math.inf)


class Softmax(NamedTuple):
    """How scores become weights, and weights outputs.

    Attributes:
        scale: What a product of query and stored key is multiplied by.
        window: Tokens that a query sees, itself included; all before it if `None`.
        soft_cap: Bound of the scaled products, if any.
        sinks: A logit for each head, float32, if any.
        v_scale: What a stored value is multiplied by.
    """

    scale: float
    window: int | None
    soft_cap: float | None
    sinks: Tensor | None
    v_scale: float


@inlined
def hide(scores, first, last, soft_cap):
    """Cap 64 scores, and take out of the softmax those before `first` and after `last`."""
    if soft_cap > ZERO:
        for lane in range(LANES):
            scores[lane] = soft_cap * tanh(scores[lane] / soft_cap)
    for lane in range(LANES):
        seen = (lane >= first) & (lane <= last)
        scores[lane] = scores[lane] if seen else -INFINITY
