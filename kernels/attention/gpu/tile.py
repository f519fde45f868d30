"""The shape of an attention program's work: a rule of sizes, dtypes and processor, not a tuning.

Bounds are registers (255 a thread on NVIDIA) and the forms that a compiler takes. A reader who
wants another tile changes `choose_tile`, and `bench/static.py` says at once what that costs.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

from blockstride.kernels.common.gpu.launching import next_power_of_2

LONG_ROWS = 128
# columns of the smallest product on tensor cores
MIN_SIZE = 16


class Tile(NamedTuple):
    """The shape of one program's work: query rows, heads among them, tokens a step, and how."""

    rows: int
    heads: int
    tokens: int
    num_warps: int
    num_stages: int
    precision: str
    by_descriptor: bool
    is_latent: bool
    specialised_tokens: int = 0  # a step of the warp-specialised kernel, which takes what it can


def padded_size(size: int) -> int:
    """The columns of a tile for so many: a power of two, no fewer than a product takes."""
    return max(MIN_SIZE, next_power_of_2(size))


def choose_tile(rows: int, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tile:
    """The one place where tiles are chosen; each line is here since a compiler spilled without.

    Args:
        rows: Query rows that are to be had: 16 to 64, or 128.
        query: Read for its shape, dtype and device.
        key_cache: Read for its shape, dtype and strides.
        value_cache: The same.
    """
    backend, arch = _target(query.device)
    block_v = padded_size(value_cache.shape[-1])
    tokens, num_stages = 64, 2
    if query.dtype == torch.float32:
        rows, tokens = min(rows, 32), 32
    if key_cache.dtype == torch.int8:
        num_stages = 1
    if block_v > 256:
        rows, tokens = min(rows, 32), 32
    elif block_v == 256:
        rows, tokens = min(rows, 64 if backend == "hip" else 128), 32
    if backend == "hip":
        rows, num_warps = min(rows, 8192 // block_v), 4
    else:
        is_large = rows * block_v > 8192 or rows == LONG_ROWS or query.dtype == torch.float32
        num_warps = 8 if is_large else 4
    latent = _is_latent(key_cache, value_cache)
    by_descriptor = backend == "cuda" and arch >= 90 and not latent
    return Tile(
        rows=rows,
        heads=min(query.shape[1] // key_cache.shape[1], rows),
        tokens=tokens,
        num_warps=num_warps,
        num_stages=num_stages,
        # three tensor-core products come within a few ulp of float32; AMD's multiply float32 itself
        precision="tf32x3" if backend == "cuda" else "ieee",
        by_descriptor=by_descriptor
        and fits_descriptor(key_cache, tokens)
        and fits_descriptor(value_cache, tokens),
        is_latent=latent,
    )


def specialise(tile: Tile, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tile:
    """The tile of the warp-specialised kernel, where it compiles and its blocks fit."""
    is_hopper = _target(query.device) == ("cuda", 90)
    fits = (
        tile.by_descriptor
        and tile.rows == LONG_ROWS
        and query.element_size() == 2
        and query.dtype == key_cache.dtype == value_cache.dtype
        and query.shape[2] == value_cache.shape[3] <= 128
        and fits_descriptor(key_cache, 128)
        and fits_descriptor(query[None], 1)
    )
    return tile._replace(heads=1, specialised_tokens=128) if is_hopper and fits else tile


def fits_descriptor(cache: Tensor, tokens: int) -> bool:
    """Whether tiles of `tokens` lie inside blocks, and base and strides suit a tensor map."""
    size, itemsize = cache.shape[3], cache.element_size()
    return (
        cache.shape[2] % tokens == 0
        and size == padded_size(size)
        and cache.stride(3) == 1
        and all(stride * itemsize % 16 == 0 for stride in cache.stride()[:3])
        and cache.data_ptr() % 16 == 0
    )


def _is_latent(key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether the values are the first part of the keys, and few enough to need no padding."""
    value_size = value_cache.shape[-1]
    return (
        key_cache.data_ptr() == value_cache.data_ptr()
        and key_cache.stride() == value_cache.stride()
        and key_cache.dtype == value_cache.dtype
        and value_size < key_cache.shape[-1]
        and value_size == padded_size(value_size)
    )


def _target(device: torch.device) -> tuple[str, int]:
    """Backend and compute capability of the device; none where kernels are interpreted."""
    if device.type == "cpu":
        return "interpreter", 0
    target = driver.active.get_current_target()
    assert target is not None, "a device has a target"
    return target.backend, target.arch if isinstance(target.arch, int) else 0
