"""Prefill attention for Hopper: one warp group fetches, two multiply, side by side.

What one program computes is what `attention_kernel` computes for 128 query tokens of one head, but
all memory goes through descriptors and the compiler gives loads and products to different warps, so
the softmax of one group overlaps the products of the other. The compiler does that for a narrow
form of code only: one loop, no branch in it, no early return, no pointers. Hence every tile is
masked by position, and this kernel takes only row tiles whose cache is whole: no unwritten end of a
block, no missing block, no window. The work list marks them by `NO_SLOT`; `attention_kernel` does
the others from the same list.

Bytes per token of context and query head: one key and one value, mostly from L2. Source: Shah et
al., "FlashAttention-3", section 3.1; Triton's warp-specialised attention tutorial.
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.online_softmax import LOG2_E, LOWEST
from blockstride.kernels.attention.gpu.work_item import (
    END,
    FIRST_TOKEN,
    ITEM_SIZE,
    NO_SLOT,
    SEQUENCE,
    SLOT,
)


@triton.jit(do_not_specialize=["stride_table"])
def specialised_kernel(
    query_ptr,
    key_cache,
    value_cache,
    block_table_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    items_ptr,
    out_ptr,
    # sizes
    scale,
    # strides, in elements
    stride_query_token,
    stride_query_head,
    stride_table,
    stride_out_token,
    stride_out_head,
    # meta-parameters
    GROUP: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    KV_BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One item of the work list for one query head, as the head of this file tells."""
    head = tl.program_id(0) % NUM_HEADS
    item_ptr = items_ptr + tl.program_id(0) // NUM_HEADS * ITEM_SIZE
    sequence = tl.load(item_ptr + SEQUENCE)
    is_mine = (sequence >= 0) & (tl.load(item_ptr + SLOT) == NO_SLOT)
    sequence = tl.where(is_mine, sequence, 0)
    query_start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - query_start
    context = tl.load(seq_lens_ptr + sequence) - query_len
    # rows past the end of the query are read as zeros and not written: so is a tile of another
    # kernel
    num_rows = tl.maximum(query_len, 1)
    first = tl.where(is_mine, tl.load(item_ptr + FIRST_TOKEN), num_rows)
    end = tl.where(is_mine, tl.load(item_ptr + END), 0)

    query_rows = tl.make_tensor_descriptor(
        query_ptr
        + query_start.to(tl.int64) * stride_query_token
        + head.to(tl.int64) * stride_query_head,
        shape=[num_rows, HEAD_SIZE],
        strides=[stride_query_token, 1],
        block_shape=[BLOCK_M, HEAD_SIZE],
    )
    out_rows = tl.make_tensor_descriptor(
        out_ptr + query_start.to(tl.int64) * stride_out_token + head.to(tl.int64) * stride_out_head,
        shape=[num_rows, HEAD_SIZE],
        strides=[stride_out_token, 1],
        block_shape=[BLOCK_M, HEAD_SIZE],
    )
    query = query_rows.load([first, 0])
    positions = context + first + tl.arange(0, BLOCK_M)
    table_ptr = block_table_ptr + sequence.to(tl.int64) * stride_table
    factor = scale * LOG2_E
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_SIZE], tl.float32)
    for start in tl.range(0, end, BLOCK_N, warp_specialize=True):
        block = tl.load(table_ptr + start // KV_BLOCK_SIZE)
        corner = [block, head // GROUP, start % KV_BLOCK_SIZE, 0]
        key = key_cache.load(corner).reshape(BLOCK_N, HEAD_SIZE)
        scores = tl.dot(query, key.T)  # [BLOCK_M, BLOCK_N]
        seen = (start + tl.arange(0, BLOCK_N))[None, :] <= positions[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        weights = tl.math.exp2(scores * factor - new_max[:, None])
        decay = tl.math.exp2(row_max - new_max)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        value = value_cache.load(corner).reshape(BLOCK_N, HEAD_SIZE)
        acc = tl.dot(weights.to(query.dtype), value, acc * decay[:, None])
        row_max = new_max
    acc = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    out_rows.store([first, 0], acc.to(query.dtype))
