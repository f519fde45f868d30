"""Move recurrent states: out of byte pages, into them, and from page to page.

All three are one kernel. One program moves a tile of one field of one sequence, in the order of the
side that is written. Axes that lie one after the other on both sides are joined into one first; a
field that both sides keep in the same order and dtype then moves as a run of 16-byte words. Bytes
moved: each byte is read once and written once.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.cache.state_field import StateField
from blockstride.kernels.common.gpu.launching import (
    assertions,
    dense,
    index_dtype,
    next_power_of_2,
    warps_for,
)

TILE_BYTES = 16 * 1024
WORDS = (torch.int32, torch.int16, torch.int8)


@triton.jit
def state_move_kernel(
    source_ptr,
    destination_ptr,
    source_indices_ptr,
    destination_indices_ptr,
    # strides, in elements
    stride_source_row,
    stride_source_outer: tl.constexpr,
    stride_source_inner: tl.constexpr,
    stride_destination_row,
    stride_destination_outer: tl.constexpr,
    stride_destination_inner: tl.constexpr,
    # meta-parameters
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    INDEX: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    NUM_SOURCE_ROWS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
):
    """One tile of one state. Without indices a row is its own number, and none is missing."""
    row = tl.program_id(0)
    source_row = row.to(tl.int64)
    destination_row = source_row
    if destination_indices_ptr is not None:
        destination_row = tl.load(destination_indices_ptr + row).to(tl.int64)
        if NUM_ROWS is not None:
            tl.device_assert(destination_row < NUM_ROWS, "an index to write, past the pool")
        if destination_row <= 0:
            return
    if source_indices_ptr is not None:
        source_row = tl.load(source_indices_ptr + row).to(tl.int64)
        if NUM_SOURCE_ROWS is not None:
            tl.device_assert(source_row < NUM_SOURCE_ROWS, "an index to read, past the pool")
        if destination_indices_ptr is not None and source_row <= 0:
            return

    tiles_i: tl.constexpr = (INNER + BLOCK_I - 1) // BLOCK_I
    pid = tl.program_id(1)
    offs_o = pid // tiles_i * BLOCK_O + tl.arange(0, BLOCK_O)
    offs_i = pid % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    # the compiler drops a mask that is all true
    mask = tl.full([BLOCK_O, BLOCK_I], True, tl.int1)
    if OUTER % BLOCK_O != 0:
        mask &= (offs_o < OUTER)[:, None]
    if INNER % BLOCK_I != 0:
        mask &= (offs_i < INNER)[None, :]
    outer, inner = offs_o.to(INDEX)[:, None], offs_i.to(INDEX)[None, :]
    # a stride in words may be no multiple of 16 of them and still one of 16 bytes
    destination_ptr += tl.multiple_of(destination_row * stride_destination_row, ALIGNMENT)
    destination_ptr += outer * stride_destination_outer + inner * stride_destination_inner
    dtype: tl.constexpr = destination_ptr.dtype.element_ty
    if source_row <= 0 and source_indices_ptr is not None:
        # what no block holds is zero
        tl.store(destination_ptr, tl.zeros([BLOCK_O, BLOCK_I], dtype), mask=mask)
        return
    source_ptr += tl.multiple_of(source_row * stride_source_row, ALIGNMENT)
    source_ptr += outer * stride_source_outer + inner * stride_source_inner
    tl.store(destination_ptr, tl.load(source_ptr, mask=mask).to(dtype), mask=mask)


def unpack_state(
    pages: Tensor,
    state_indices: Tensor,
    fields: Sequence[StateField],
    dtypes: Sequence[torch.dtype],
) -> tuple[Tensor, ...]:
    """See `blockstride.kernels.unpack_state`, which validates."""
    states = []
    for field, dtype in zip(fields, dtypes, strict=True):
        shape = (state_indices.shape[0], *field.shape)
        state = torch.empty(shape, dtype=dtype, device=pages.device)
        _move(_field_of(pages, field), state, state_indices, None)
        states.append(state)
    return tuple(states)


def pack_state(
    states: Sequence[Tensor],
    pages: Tensor,
    state_indices: Tensor,
    fields: Sequence[StateField],
) -> None:
    """See `blockstride.kernels.pack_state`, which validates."""
    for state, field in zip(states, fields, strict=True):
        _move(state, _field_of(pages, field), None, state_indices)


def copy_state(
    pages: Tensor,
    source_indices: Tensor,
    destination_indices: Tensor,
) -> None:
    """See `blockstride.kernels.copy_state`, which validates."""
    rows = pages.as_strided((pages.shape[0], pages.shape[3]), (pages.stride(0), 1))
    _move(rows, rows, source_indices, destination_indices)


def _field_of(pages: Tensor, field: StateField) -> Tensor:
    """`[num_blocks, *field.shape]`: one field of all pages, in their memory."""
    num_blocks, stride = pages.shape[0], pages.stride(0)
    extent = (num_blocks, field.end_bytes - field.offset_bytes)
    whole = pages.as_strided(extent, (stride, 1), pages.storage_offset() + field.offset_bytes)
    strides = (stride // field.dtype.itemsize, *field.stride)
    return whole.view(field.dtype).as_strided((num_blocks, *field.shape), strides)


def _move(
    source: Tensor,
    destination: Tensor,
    source_indices: Tensor | None,
    destination_indices: Tensor | None,
) -> None:
    """Move `[rows, *axes]`; a side with indices is a pool, one without has a row a sequence."""
    indices = destination_indices if source_indices is None else source_indices
    assert indices is not None, "one side is a pool"
    source_indices, destination_indices = dense(source_indices, destination_indices)
    if indices.shape[0] == 0 or 0 in destination.shape[1:]:
        return
    axes = _joined(destination.shape[1:], source.stride()[1:], destination.stride()[1:])
    if len(axes) > 2:
        for i in range(source.shape[1]):
            _move(source[:, i], destination[:, i], source_indices, destination_indices)
        return
    (outer, *outer_strides), (inner, *inner_strides) = ((1, 0, 0), *axes)[-2:]
    is_run = outer == 1 and inner_strides == [1, 1] and source.dtype == destination.dtype
    if is_run and source.element_size() < 4:
        source, destination = _as_words(inner, source, destination)
        inner = destination.shape[1]
    size = max(source.element_size(), destination.element_size())
    block_i = min(next_power_of_2(inner), TILE_BYTES // size)
    block_o = min(next_power_of_2(outer), TILE_BYTES // size // block_i)
    steps = (source.stride(0) * size, destination.stride(0) * size)
    state_move_kernel[(indices.shape[0], -(-outer // block_o) * -(-inner // block_i))](
        source,
        destination,
        source_indices,
        destination_indices,
        source.stride(0),
        outer_strides[0],
        inner_strides[0],
        destination.stride(0),
        outer_strides[1],
        inner_strides[1],
        OUTER=outer,
        INNER=inner,
        INDEX=index_dtype(source.dim() - 1, source, destination),
        ALIGNMENT=16 // size if is_run and not any(step % 16 for step in steps) else 1,
        BLOCK_O=block_o,
        BLOCK_I=block_i,
        num_warps=warps_for(block_o * block_i * size, lane_bytes=512 if is_run else 128),
        enable_fp_fusion=False,
        **assertions(NUM_SOURCE_ROWS=source.shape[0], NUM_ROWS=destination.shape[0]),
    )


def _as_words(numel: int, *sides: Tensor) -> list[Tensor]:
    """`[rows, words]` of each side: the same memory, in the widest integers that both allow.

    A narrow element takes a register of its own where it is one, and instructions on the way there.
    """
    size = sides[0].element_size()
    steps = [numel * size]
    for side in sides:
        steps += side.data_ptr(), side.stride(0) * size
    word = next(word for word in WORDS if not any(step % word.itemsize for step in steps))
    return [s.as_strided((s.shape[0], numel), (s.stride(0), 1)).view(word) for s in sides]


@lru_cache
def _joined(
    shape: tuple[int, ...], source: tuple[int, ...], destination: tuple[int, ...]
) -> tuple[tuple[int, int, int], ...]:
    """Extent and both strides of each axis, outermost in the destination first, joined.

    Two neighbours are one axis where on both sides the outer steps over exactly the inner.
    """
    axes = sorted(zip(destination, shape, source, strict=True), reverse=True)
    joined: list[tuple[int, int, int]] = []
    for step, extent, read in axes:
        if extent == 1:
            continue
        if joined and joined[-1][1:] == (extent * read, extent * step):
            joined[-1] = (joined[-1][0] * extent, read, step)
        else:
            joined.append((extent, read, step))
    return tuple(joined) or ((1, 1, 1),)
