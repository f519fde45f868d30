"""A tile of consecutive tokens of one sequence, out of the pages that its block table names.

It is gathered token by token, or fetched by descriptor where a block holds a whole tile.
"""

import triton
import triton.language as tl


@triton.jit
def locate(start, offs_n, KV_BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Entry in the block table, and offset in the block, of each token of the tile at `start`.

    Tiles begin at multiples of `BLOCK_N`: if one size divides the other, one of the two is
    loop-invariant.
    """
    if KV_BLOCK_SIZE == BLOCK_N:
        entry, token = start // KV_BLOCK_SIZE, offs_n
    elif KV_BLOCK_SIZE % BLOCK_N == 0:
        entry, token = start // KV_BLOCK_SIZE, start % KV_BLOCK_SIZE + offs_n
    elif BLOCK_N % KV_BLOCK_SIZE == 0:
        entry = start // KV_BLOCK_SIZE + offs_n // KV_BLOCK_SIZE
        token = offs_n % KV_BLOCK_SIZE
    else:
        entry, token = (start + offs_n) // KV_BLOCK_SIZE, (start + offs_n) % KV_BLOCK_SIZE
    return entry, token


@triton.jit
def find_tokens(
    table_ptr, start, offs_n, visible,
    KV_BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, IS_MASKED: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Block and offset of each token of a tile, and which are visible: none of a missing block."""
    entry, token = locate(start, offs_n, KV_BLOCK_SIZE, BLOCK_N)
    if IS_MASKED and KV_BLOCK_SIZE % BLOCK_N != 0:
        block = tl.load(table_ptr + entry, mask=visible, other=0).to(tl.int64)
    else:
        block = tl.load(table_ptr + entry).to(tl.int64)
    if NUM_BLOCKS is not None:
        tl.device_assert(block < NUM_BLOCKS, "block_table: a block past the pool")
    if IS_MASKED:
        visible &= block > 0
    return block, token, visible


@triton.jit
def gather(cache_ptr, rows, columns, visible, SIZE: tl.constexpr, IS_MASKED: tl.constexpr):
    """Tokens of a tile by pointers; of tokens that no row sees, zeros, unread."""
    pointers = cache_ptr + rows[:, None] + columns[None, :]
    inside = tl.arange(0, columns.shape[0]) < SIZE
    if IS_MASKED:
        tile = tl.load(pointers, mask=visible[:, None] & inside[None, :], other=0.0)
    elif columns.shape[0] != SIZE:
        tile = tl.load(pointers, mask=inside[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
