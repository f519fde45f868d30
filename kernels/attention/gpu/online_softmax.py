"""The online softmax of a tile of query rows, one tile of keys and values after the other.

It counts in powers of two: `exp2(score * factor - max)` is one fused multiply-add and one `ex2`.

Source: Dao, "FlashAttention-2", section 3.
"""

import triton
import triton.language as tl

# finite, so that a row which has seen nothing yet subtracts it from minus infinity without a NaN
LOWEST: tl.constexpr = tl.constexpr(-1e30)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def capped(scores, factor, SOFT_CAP: tl.constexpr):
    """`cap * tanh(score / cap)` in units of log2(e), by one exponential and one reciprocal."""
    cap: tl.constexpr = SOFT_CAP * LOG2_E
    return cap - 2.0 * cap / (1.0 + tl.math.exp2(scores * (factor * (2.0 / SOFT_CAP))))


@triton.jit
def hidden(scores, position, visible, positions, window):
    """Minus infinity for what a row at one of `positions` doesn't see of the keys at `position`."""
    seen = visible[None, :] & (position[None, :] <= positions[:, None])
    if window is not None:
        seen &= position[None, :] > positions[:, None] - window
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def accumulate(
    scores, value, row_max, row_sum, acc, factor,
    SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax; `row_max` is in powers of two, `row_sum` relative to it."""
    if SOFT_CAP is not None:
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_max[:, None])
    else:
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        weights = tl.math.exp2(scores * factor - new_max[:, None])
    decay = tl.math.exp2(row_max - new_max)
    row_sum = row_sum * decay + tl.sum(weights, 1)
    weights = weights.to(value.dtype)
    acc = tl.dot(weights, value, acc * decay[:, None], input_precision=PRECISION)
    return new_max, row_sum, acc
