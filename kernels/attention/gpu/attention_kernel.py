"""Paged attention: the online softmax of a tile of query rows over a range of a cache.

A program takes one item of the work list and one key-value head (or part of its group of query
heads). Its rows are (query token, query head) pairs that share that head, so a decode step of 8
heads fills 8 rows and a prompt fills 128. It loads their queries (`query_rows.py`), walks its range
of the cache in tiles (`cache_walk.py`), and finishes the rows or leaves them to be added up
(`result_rows.py`). Scales of a quantised cache multiply the scores' factor and the result, never a
tile.

Bytes per token of context and key-value head: one key and one value, once per 128 rows; for a
latent cache (MLA), whose value is the first part of its key, the key alone.

Source: Dao, "FlashAttention-2", section 3; Flash-Decoding for the split; FlashMLA for the latent
    form.
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.cache_walk import walk
from blockstride.kernels.attention.gpu.query_rows import query_rows, scaled_queries
from blockstride.kernels.attention.gpu.result_rows import finish, store_partial, store_rows
from blockstride.kernels.attention.gpu.work_item import (
    FIRST_TOKEN,
    ITEM_SIZE,
    NO_SLOT,
    NUM_SPLITS,
    SEQUENCE,
    SLOT,
    load_range,
)


@triton.jit(do_not_specialize=["stride_table"])
def attention_kernel(
    query_ptr, key_cache, value_cache, block_table_ptr, seq_lens_ptr, query_start_loc_ptr,
    items_ptr, out_ptr, lse_ptr, partial_acc_ptr, partial_stats_ptr, sinks_ptr,
    k_scale_ptr, v_scale_ptr,
    # sizes
    scale, window,
    # strides, in elements
    stride_query_token, stride_query_head, stride_key_block, stride_key_head, stride_value_block,
    stride_value_head, stride_table, stride_out_token, stride_out_head,
    stride_query_dim: tl.constexpr,
    stride_key_token: tl.constexpr, stride_key_dim: tl.constexpr,
    stride_value_token: tl.constexpr, stride_value_dim: tl.constexpr,
    stride_out_dim: tl.constexpr,
    # meta-parameters
    GROUP: tl.constexpr, HEADS_PER_TILE: tl.constexpr, TILES_H: tl.constexpr,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, KV_BLOCK_SIZE: tl.constexpr,
    SOFT_CAP: tl.constexpr, DOT_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    INDEX: tl.constexpr, ROW_INDEX: tl.constexpr, ANY_SIGN: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr, IS_LATENT: tl.constexpr, SAME_STRIDES: tl.constexpr,
    SKIP_WHOLE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_TAIL: tl.constexpr, BLOCK_V: tl.constexpr,
    NUM_STAGES: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One item of the work list for one key-value head, as the head of this file tells."""
    # one axis, of which alone a grid may have more than 65,535
    pid_h = tl.program_id(0) % TILES_H
    item_ptr = items_ptr + tl.program_id(0) // TILES_H * ITEM_SIZE
    sequence = tl.load(item_ptr + SEQUENCE)
    if (sequence < 0) | (SKIP_WHOLE & (tl.load(item_ptr + SLOT) == NO_SLOT)):
        return
    offs_m = tl.arange(0, BLOCK_M)
    tokens, offset, heads, mask_m = query_rows(
        item_ptr, query_start_loc_ptr, pid_h, offs_m,
        GROUP, HEADS_PER_TILE, BLOCK_M // HEADS_PER_TILE,
    )  # fmt: skip
    # in another order these loads and offsets cost registers, as `bench/static.py` tells
    begin, full_begin, full_end, end = load_range(item_ptr)
    query_len = tl.load(query_start_loc_ptr + sequence + 1)
    query_len -= tl.load(query_start_loc_ptr + sequence)
    context = tl.load(seq_lens_ptr + sequence) - query_len
    positions = context + offset  # [BLOCK_M]
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D).to(ROW_INDEX)
    offs_v = tl.arange(0, BLOCK_V).to(ROW_INDEX)
    query, query_tail, factor = scaled_queries(
        query_ptr, tokens, heads, offs_d, mask_m,
        stride_query_token, stride_query_head, stride_query_dim,
        scale, k_scale_ptr, HEAD_SIZE, DOT_DTYPE, ROW_INDEX, ANY_SIGN, BLOCK_D, BLOCK_TAIL,
    )  # fmt: skip
    kv_head = pid_h // tl.cdiv(GROUP, HEADS_PER_TILE)
    table_ptr = block_table_ptr + sequence.to(tl.int64) * stride_table
    if not BY_DESCRIPTOR:
        key_cache += kv_head.to(tl.int64) * stride_key_head
        value_cache += kv_head.to(tl.int64) * stride_value_head
    lowest = 0
    if window is not None:
        lowest = context + tl.load(item_ptr + FIRST_TOKEN) - window + 1

    row_max, row_sum, acc = walk(
        query, query_tail, factor, positions, lowest, window,
        begin, full_begin, full_end, end, table_ptr, key_cache, value_cache, kv_head,
        offs_n, offs_d, offs_v,
        stride_key_block, stride_key_token, stride_key_dim,
        stride_value_block, stride_value_token, stride_value_dim,
        HEAD_SIZE, VALUE_SIZE, KV_BLOCK_SIZE, SOFT_CAP, DOT_DTYPE, PRECISION, INDEX, ROW_INDEX,
        BY_DESCRIPTOR, IS_LATENT, SAME_STRIDES, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_TAIL, BLOCK_V,
        NUM_STAGES, NUM_BLOCKS,
    )  # fmt: skip

    if tl.load(item_ptr + NUM_SPLITS) == 1:
        acc, lse = finish(row_max, row_sum, acc, sinks_ptr, v_scale_ptr, heads, mask_m)
        store_rows(
            out_ptr, lse_ptr, acc, lse, tokens, heads, mask_m, offs_v,
            stride_out_token, stride_out_head, stride_out_dim, VALUE_SIZE,
            TILES_H // tl.cdiv(GROUP, HEADS_PER_TILE) * GROUP,
        )  # fmt: skip
    else:
        slot = tl.load(item_ptr + SLOT).to(tl.int64) * TILES_H + pid_h
        rows = slot * BLOCK_M + offs_m
        store_partial(partial_acc_ptr, partial_stats_ptr, rows, row_max, row_sum, acc, offs_v)
