"""What every launcher computes: powers of two, warps for some bytes, how wide offsets are."""

import triton.language as tl
from torch import Tensor


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least `n`, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def warps_for(num_bytes: int, lane_bytes: int = 256, most: int = 32) -> int:
    """Warps whose lanes hold `lane_bytes` each of a tile of `num_bytes`, four bytes a register."""
    return min(most, max(1, next_power_of_2(num_bytes // (32 * lane_bytes))))


def index_dtype(axes: int, *caches: Tensor) -> tl.dtype:
    """The narrowest integer that holds every offset along the last `axes` axes of these caches.

    The offset of a block is int64 always; inside a block 32 bits nearly always do, at half the
    instructions.
    """
    for cache in caches:
        span = 0
        for size, stride in zip(cache.shape[-axes:], cache.stride()[-axes:], strict=True):
            span += (size - 1) * stride
        if span >= 2**31:
            return tl.int64
    return tl.int32
