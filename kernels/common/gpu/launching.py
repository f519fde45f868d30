"""What every launcher asks: powers of two, warps for some bytes, how wide offsets are."""

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from blockstride.checks import checks_are_full

# one-warp programs that keep any GPU busy; a launch with more may give each of them more to do
ENOUGH_PROGRAMS = 1024


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


def dense_rows(tensor: Tensor) -> Tensor:
    """The tensor with the elements of its last axis side by side, copied if need be."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def dense(*vectors: Tensor | None) -> tuple[Any, ...]:
    """Short vectors with their elements side by side, copied if need be; `None` stays `None`."""
    return tuple(None if vector is None else vector.contiguous() for vector in vectors)


def strides_of(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    """Strides of an optional tensor; zeros, which nothing reads, if there is none."""
    return (0,) * axes if tensor is None else tensor.stride()


def assertions(**num_blocks: int) -> dict[str, Any]:
    """Options of a launch: under full checks its ids are held to pools of so many blocks."""
    is_full = checks_are_full()
    return {**(num_blocks if is_full else dict.fromkeys(num_blocks)), "debug": is_full}


@lru_cache
def count_processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; those of an H200 for a tensor without memory, and 1 on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 132 if device.type == "meta" else 1


def backend_of(device: torch.device) -> str:
    """`cuda` or `hip`; `interpreter` where kernels are interpreted."""
    if device.type == "cpu":
        return "interpreter"
    target = driver.active.get_current_target()
    assert target is not None, "a device has a target"
    return target.backend


def dot_precision(device: torch.device) -> str:
    """How float32 is multiplied: within a few ulp, by three tensor-core products on NVIDIA."""
    return "tf32x3" if backend_of(device) == "cuda" else "ieee"
