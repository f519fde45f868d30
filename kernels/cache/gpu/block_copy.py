"""Copy cache blocks between any two layouts: gather, scatter, permute, re-block, slice, cast.

The blocks of each side, in order, spell one stream of tokens. Source: token `t` is offset `t % N`
of block `t // N`; destination: offset `t % N'` of block `t // N'`. Nothing else relates the two
sides, so strides, block sizes and dtypes may differ freely.

One program moves a tile of rows (token, head) of one destination block of one layer; where each
layer begins is read from a table, so layers need not be evenly spaced. In place, one program holds
one whole block in registers and passes a barrier between its last read and its first write. Each
byte is read once and written once. Source of the idea: vLLM's reshape of received blocks, which
makes three such passes.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.launching import (
    assertions,
    dense,
    index_dtype,
    next_power_of_2,
    warps_for,
)

# bytes of a tile, and of the largest block that the registers of one program may hold
TILE_BYTES = 16 * 1024
IN_PLACE_BYTES = 128 * 1024


@triton.jit
def saturating_cast(x, dtype: tl.constexpr):
    """Cast, saturating to the largest finite fp8; a GPU's own casts differ in that."""
    if dtype == tl.float8e4nv and x.dtype != tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def recut(
    source_blocks_ptr, index, token, mask,
    SOURCE_BLOCK_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, NUM_SOURCE_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Block and offset in the source of the tokens of a block of another size, and which exist."""
    stream = index.to(tl.int64) * BLOCK_SIZE + token
    entry = source_blocks_ptr + stream // SOURCE_BLOCK_SIZE
    blocks = tl.load(entry, mask=mask, other=0).to(tl.int64)
    if NUM_SOURCE_BLOCKS is not None:
        tl.device_assert(blocks < NUM_SOURCE_BLOCKS, "source_blocks: past the pool")
    return blocks, (stream % SOURCE_BLOCK_SIZE).to(tl.int32), mask & (blocks > 0)


@triton.jit
def places(
    head, token, offs_c, stride_head: tl.constexpr, stride_token: tl.constexpr,
    stride_content: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Where the elements of a tile lie in their blocks."""
    rows = head.to(INDEX) * stride_head + token.to(INDEX) * stride_token
    return rows[:, None] + offs_c[None, :] * stride_content  # [BLOCK_R, BLOCK_C]


@triton.jit
def block_copy_kernel(
    source_ptr,
    destination_ptr,
    source_layers_ptr,
    destination_layers_ptr,
    source_blocks_ptr,
    destination_blocks_ptr,
    # strides, in elements
    stride_source_block,
    stride_source_head: tl.constexpr,
    stride_source_token: tl.constexpr,
    stride_source_content: tl.constexpr,
    stride_destination_block,
    stride_destination_head: tl.constexpr,
    stride_destination_token: tl.constexpr,
    stride_destination_content: tl.constexpr,
    # meta-parameters
    NUM_HEADS: tl.constexpr,
    SOURCE_BLOCK_SIZE: tl.constexpr,
    DESTINATION_BLOCK_SIZE: tl.constexpr,
    CONTENT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    INDEX: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    IN_PLACE: tl.constexpr,
    NUM_SOURCE_BLOCKS: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """One tile of one destination block of one layer."""
    index = tl.program_id(0)
    # in place there is one tile, and saying so folds all index arithmetic inside the block
    tile = 0 if IN_PLACE else tl.program_id(1)
    layer = tl.program_id(2)
    # the launcher knows the offsets' common alignment; the compiler cannot see through a table
    source_ptr += tl.multiple_of(tl.load(source_layers_ptr + layer), ALIGNMENT)
    destination_ptr += tl.multiple_of(tl.load(destination_layers_ptr + layer), ALIGNMENT)

    tiles_c: tl.constexpr = (CONTENT + BLOCK_C - 1) // BLOCK_C
    rows = tile // tiles_c * BLOCK_R + tl.arange(0, BLOCK_R)
    token, head = rows // NUM_HEADS, rows % NUM_HEADS
    offs_c = (tile % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)).to(INDEX)
    mask_r = rows < DESTINATION_BLOCK_SIZE * NUM_HEADS

    destination_block = tl.load(destination_blocks_ptr + index).to(tl.int64)
    if NUM_BLOCKS is not None:
        tl.device_assert(destination_block < NUM_BLOCKS, "destination_blocks: past the pool")
    if SOURCE_BLOCK_SIZE == DESTINATION_BLOCK_SIZE:
        source_block = tl.load(source_blocks_ptr + index).to(tl.int64)
        if NUM_SOURCE_BLOCKS is not None:
            tl.device_assert(source_block < NUM_SOURCE_BLOCKS, "source_blocks: past the pool")
        if (source_block <= 0) | (destination_block <= 0):
            return
        source_token = token
        source_rows = source_block * stride_source_block
    else:
        if destination_block <= 0:
            return
        source_blocks, source_token, mask_r = recut(
            source_blocks_ptr, index, token, mask_r,
            SOURCE_BLOCK_SIZE, DESTINATION_BLOCK_SIZE, NUM_SOURCE_BLOCKS,
        )  # fmt: skip
        source_rows = (source_blocks * stride_source_block)[:, None]
    mask = mask_r[:, None] & (offs_c < CONTENT)[None, :]
    source_ptr += source_rows
    inner = places(
        head, source_token, offs_c,
        stride_source_head, stride_source_token, stride_source_content, INDEX,
    )  # fmt: skip
    x = tl.load(source_ptr + inner, mask=mask)
    if IN_PLACE:
        # a row is written where another thread has yet to read
        tl.debug_barrier()
    destination_ptr += destination_block * stride_destination_block
    rows_ptr = destination_ptr + places(
        head, token, offs_c,
        stride_destination_head, stride_destination_token, stride_destination_content, INDEX,
    )  # fmt: skip
    tl.store(rows_ptr, saturating_cast(x, destination_ptr.dtype.element_ty), mask=mask)


def block_copy(
    source: Tensor,
    destination: Tensor,
    source_blocks: Tensor,
    destination_blocks: Tensor,
) -> None:
    """See `blockstride.kernels.block_copy`, which validates.

    Where the two pools share memory, a block that stays in its own bytes is permuted in registers.
    Any other overlap goes through a dense copy of the source blocks, as large as they are.
    """
    if destination_blocks.shape[0] == 0 or 0 in destination.shape:
        return
    if source.dtype == destination.dtype and source.element_size() == 1:
        # bytes are bytes, also where the device has no fp8
        source, destination = source.view(torch.uint8), destination.view(torch.uint8)
    source_blocks, destination_blocks = dense(source_blocks, destination_blocks)
    if not _overlap(source, destination):
        _launch(source, destination, source_blocks, destination_blocks, in_place=False)
    elif _stays_in_its_bytes(source, destination, source_blocks, destination_blocks):
        _launch(source, destination, source_blocks, destination_blocks, in_place=True)
    else:
        num_reads = source_blocks.shape[0]
        shape = (source.shape[0], num_reads + 1, *source.shape[2:])
        staging = torch.empty(shape, dtype=source.dtype, device=source.device)
        numbers = torch.arange(1, num_reads + 1, dtype=torch.int32, device=source.device)
        staged_blocks = numbers * (source_blocks > 0)
        _launch(source, staging, source_blocks, staged_blocks, in_place=False)
        _launch(staging, destination, staged_blocks, destination_blocks, in_place=False)


def _launch(
    source: Tensor,
    destination: Tensor,
    source_blocks: Tensor,
    destination_blocks: Tensor,
    in_place: bool,
) -> None:
    num_layers, _, num_heads, block_size, content = destination.shape
    rows, itemsize = block_size * num_heads, source.element_size()
    block_c = next_power_of_2(content)
    block_r = next_power_of_2(rows)
    if not in_place:
        block_c = min(block_c, TILE_BYTES // itemsize)
        block_r = min(block_r, max(1, TILE_BYTES // (block_c * itemsize)))
    tiles = -(-rows // block_r) * -(-content // block_c)
    layers = range(num_layers)
    source_layers = tuple(layer * source.stride(0) for layer in layers)
    destination_layers = tuple(layer * destination.stride(0) for layer in layers)
    block_copy_kernel[(destination_blocks.shape[0], tiles, num_layers)](
        source,
        destination,
        _table(source_layers, source.device),
        _table(destination_layers, source.device),
        source_blocks,
        destination_blocks,
        *source.stride()[1:],
        *destination.stride()[1:],
        NUM_HEADS=num_heads,
        SOURCE_BLOCK_SIZE=source.shape[3],
        DESTINATION_BLOCK_SIZE=block_size,
        CONTENT=content,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        INDEX=index_dtype(3, source, destination),
        ALIGNMENT=16 if not any(o % 16 for o in source_layers + destination_layers) else 1,
        IN_PLACE=in_place,
        # the more accesses a lane makes, the further its address arithmetic goes
        num_warps=warps_for(block_r * block_c * itemsize, lane_bytes=512 if in_place else 256),
        enable_fp_fusion=False,
        **assertions(NUM_SOURCE_BLOCKS=source.shape[1], NUM_BLOCKS=destination.shape[1]),
    )


@lru_cache(maxsize=256)
def _table(offsets: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each layer begins, on the device, kept: a copy to the device a call would cost more."""
    return torch.tensor(offsets, dtype=torch.int64, device=device)


def _extent_bytes(pool: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(pool.shape, pool.stride(), strict=True))
    return pool.data_ptr(), pool.data_ptr() + (last + 1) * pool.element_size()


def _overlap(source: Tensor, destination: Tensor) -> bool:
    (begin, end), (other_begin, other_end) = _extent_bytes(source), _extent_bytes(destination)
    return begin < other_end and other_begin < end


def _stays_in_its_bytes(
    source: Tensor, destination: Tensor, source_blocks: Tensor, destination_blocks: Tensor
) -> bool:
    """Whether every block is written exactly where it was read, apart from all others."""
    blocks = (source_blocks.data_ptr(), source_blocks.shape)
    same_place = (
        source.data_ptr() == destination.data_ptr()
        and source.element_size() == destination.element_size()
        and source.shape == destination.shape
        and source.stride()[:2] == destination.stride()[:2]
        and blocks == (destination_blocks.data_ptr(), destination_blocks.shape)
    )
    if not same_place:
        return False
    span = 1 + max(
        sum((n - 1) * s for n, s in zip(pool.shape[2:], pool.stride()[2:], strict=True))
        for pool in (source, destination)
    )
    if span * source.element_size() > IN_PLACE_BYTES:
        return False
    # blocks are apart if each outer axis steps over all that lies inside it
    for stride, count in sorted(zip(source.stride()[:2], source.shape[:2], strict=True)):
        if count > 1 and stride < span:
            return False
        span += (count - 1) * stride
    return True
