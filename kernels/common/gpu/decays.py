"""Running sums of decays, in powers of two, that a large decay does not rob of small ones.

A sum is two numbers: a multiple of 2**-8, added without rounding, and what is left, which is small.
A difference of two such sums is exact to 2**-24, however large they are.
"""

import triton
import triton.language as tl

# adding it to a number from -192 to 0 rounds that to a multiple of 2**-8
TO_GRID: tl.constexpr = tl.constexpr(49152.0)
# what decays everything to zero counts as this
LOWEST: tl.constexpr = tl.constexpr(-192.0)


@triton.jit
def split_sum(log_decay):
    """Running sums along the last axis, of multiples of 2**-8 and of what is left."""
    log_decay = tl.maximum(log_decay, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    high = (log_decay + TO_GRID) - TO_GRID
    return tl.cumsum(high, -1), tl.cumsum(log_decay - high, -1)
