"""Tiles of recurrent states, by parts: what the decode steps of both Mambas have in common.

A tile is [rows, states]. It is cut along the states into parts that the same lanes hold, so that
most of a sum over states is a chain of fused multiply-adds within a lane, few shuffles are left of
it, and few lanes repeat what is computed per row.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import widened


@triton.jit
def part_mask(mask_rows, part, D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which elements of a part exist; the compiler drops a mask that is all true."""
    mask_n = tl.full([BLOCK_N], True, tl.int1)
    if PARTS * BLOCK_N != D_STATE:
        mask_n = part * BLOCK_N + tl.arange(0, BLOCK_N) < D_STATE
    return mask_rows[:, None] & mask_n[None, :]


@triton.jit
def load_parts(
    ptrs, stride_state, mask_rows,
    D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The parts of a tile in float32, from the addresses of the first; zeros past the states."""
    step = tl.cast(stride_state, tl.int64) * BLOCK_N
    parts = ()
    for part in tl.static_range(PARTS):
        mask = part_mask(mask_rows, part, D_STATE, PARTS, BLOCK_N)
        x = tl.load(ptrs + part * step, mask=mask, other=0.0)
        parts += (widened(x),)
    return parts


@triton.jit
def store_parts(
    ptrs, stride_state, states, mask_rows,
    D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The inverse of `load_parts`, rounded to the dtype of the pool."""
    step = tl.cast(stride_state, tl.int64) * BLOCK_N
    for part in tl.static_range(PARTS):
        mask = part_mask(mask_rows, part, D_STATE, PARTS, BLOCK_N)
        x = states[part].to(ptrs.dtype.element_ty)
        tl.store(ptrs + part * step, x, mask=mask)
