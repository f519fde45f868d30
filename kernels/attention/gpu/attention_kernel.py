"""Paged attention: the online softmax of a tile of query rows over a range of a cache.

A program takes one item of the work list and one key-value head (or part of its group of query
heads). Its rows are (query token, query head) pairs that share that head, so a decode step of 8
heads fills 8 rows and a prompt fills 128. It walks its range of the cache in tiles: those that
every row sees whole need no mask and come in the middle, so only the ends of the range pay for
masks, bounds and windows.

A tile is gathered through the block table, token by token, or fetched by descriptor where a block
holds a whole tile. Scales of a quantised cache multiply the scores' factor and the result, never a
tile. Work is counted in powers of two: `exp2(score * factor - max)` is one fused multiply-add and
one `ex2`.

Bytes per token of context and key-value head: one key and one value, once per 128 rows; for a
latent cache (MLA), whose value is the first part of its key, the key alone.

Source: Dao, "FlashAttention-2", section 3; Flash-Decoding for the split; FlashMLA for the latent
    form.
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.rows import (
    ITEM_SIZE,
    LOG2_E,
    LOWEST,
    finish,
    query_rows,
    store_rows,
)


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


@triton.jit
def capped(scores, factor, SOFT_CAP: tl.constexpr):
    """`cap * tanh(score / cap)` in units of log2(e), by one exponential and one reciprocal."""
    cap: tl.constexpr = SOFT_CAP * LOG2_E
    return cap - 2.0 * cap / (1.0 + tl.math.exp2(scores * (factor * (2.0 / SOFT_CAP))))


@triton.jit
def accumulate(
    scores, value, row_max, row_sum, acc, factor,
    SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the online softmax; `row_max` is in powers of two, `row_sum` relative to it."""
    if SOFT_CAP is not None:
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_max[:, None])
    else:
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        weights = tl.math.exp2(scores * factor - new_max[:, None])
    decay = tl.math.exp2(row_max - new_max)
    row_sum = row_sum * decay + tl.sum(weights, 1)
    weights = weights.to(value.dtype)
    acc = tl.dot(weights, value, acc * decay[:, None], input_precision=PRECISION)
    return new_max, row_sum, acc


@triton.jit(do_not_specialize=["stride_table"])
def attention_kernel(
    query_ptr,
    key_cache,
    value_cache,
    block_table_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    items_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_stats_ptr,
    sinks_ptr,
    k_scale_ptr,
    v_scale_ptr,
    # sizes
    scale,
    window,
    # strides, in elements
    stride_query_token,
    stride_query_head,
    stride_key_block,
    stride_key_head,
    stride_value_block,
    stride_value_head,
    stride_table,
    stride_out_token,
    stride_out_head,
    stride_query_dim: tl.constexpr,
    stride_key_token: tl.constexpr,
    stride_key_dim: tl.constexpr,
    stride_value_token: tl.constexpr,
    stride_value_dim: tl.constexpr,
    stride_out_dim: tl.constexpr,
    # meta-parameters
    GROUP: tl.constexpr,
    HEADS_PER_TILE: tl.constexpr,
    TILES_H: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    KV_BLOCK_SIZE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    INDEX: tl.constexpr,
    ROW_INDEX: tl.constexpr,
    ANY_SIGN: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
    IS_LATENT: tl.constexpr,
    SAME_STRIDES: tl.constexpr,
    SKIP_WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_TAIL: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """One item of the work list for one key-value head, as the head of this file tells."""
    # one axis, of which alone a grid may have more than 65,535
    pid_h = tl.program_id(0) % TILES_H
    item_ptr = items_ptr + tl.program_id(0) // TILES_H * ITEM_SIZE
    sequence = tl.load(item_ptr)
    if (sequence < 0) | (SKIP_WHOLE & (tl.load(item_ptr + 6) == -1)):
        return
    offs_m = tl.arange(0, BLOCK_M)
    tokens, offset, heads, mask_m = query_rows(
        item_ptr, query_start_loc_ptr, pid_h, offs_m,
        GROUP, HEADS_PER_TILE, BLOCK_M // HEADS_PER_TILE,
    )  # fmt: skip
    begin, end = tl.load(item_ptr + 2), tl.load(item_ptr + 5)
    full_begin, full_end = tl.load(item_ptr + 3), tl.load(item_ptr + 4)
    query_len = tl.load(query_start_loc_ptr + sequence + 1)
    query_len -= tl.load(query_start_loc_ptr + sequence)
    context = tl.load(seq_lens_ptr + sequence) - query_len
    positions = context + offset  # [BLOCK_M]

    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D).to(ROW_INDEX)
    offs_v = tl.arange(0, BLOCK_V).to(ROW_INDEX)
    KEY_MAIN: tl.constexpr = HEAD_SIZE if HEAD_SIZE < BLOCK_D else BLOCK_D
    row_ptr = query_ptr + (
        tokens.to(tl.int64) * stride_query_token + heads.to(tl.int64) * stride_query_head
    )
    query = tl.load(
        row_ptr[:, None] + offs_d[None, :] * stride_query_dim,
        mask=mask_m[:, None] & (offs_d < HEAD_SIZE)[None, :],
        other=0.0,
    ).to(DOT_DTYPE)  # [BLOCK_M, BLOCK_D]
    if BLOCK_TAIL > 0:
        offs_tail = BLOCK_D + tl.arange(0, BLOCK_TAIL).to(ROW_INDEX)
        query_tail = tl.load(
            row_ptr[:, None] + offs_tail[None, :] * stride_query_dim,
            mask=mask_m[:, None] & (offs_tail < HEAD_SIZE)[None, :],
            other=0.0,
        ).to(DOT_DTYPE)

    factor = scale * LOG2_E
    if k_scale_ptr is not None:
        factor *= tl.load(k_scale_ptr)
    if ANY_SIGN:
        # the running maximum is one of products, so what is not positive turns the query instead;
        # NaN too: so it reaches what a row sees, and no row that sees nothing
        sign = tl.where(factor > 0.0, 1.0, tl.where(factor < 0.0, -1.0, factor * 0.0))
        query = (query * sign).to(DOT_DTYPE)
        if BLOCK_TAIL > 0:
            query_tail = (query_tail * sign).to(DOT_DTYPE)
        factor = tl.where(tl.abs(factor) > 0.0, tl.abs(factor), 1.0)
    kv_head = pid_h // tl.cdiv(GROUP, HEADS_PER_TILE)
    table_ptr = block_table_ptr + sequence.to(tl.int64) * stride_table
    if not BY_DESCRIPTOR:
        key_cache += kv_head.to(tl.int64) * stride_key_head
        value_cache += kv_head.to(tl.int64) * stride_value_head
    key_columns = offs_d.to(INDEX) * stride_key_dim
    value_columns = offs_v.to(INDEX) * stride_value_dim
    lowest = 0
    if window is not None:
        lowest = context + tl.load(item_ptr + 1) - window + 1

    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for phase in tl.static_range(3):
        # a window cuts off the first tiles, the diagonal and the end of the sequence the last ones
        if phase == 0:
            first, last = begin, full_begin
        elif phase == 1:
            first, last = full_begin, full_end
        else:
            first, last = full_end, end
        for start in tl.range(first, last, BLOCK_N, num_stages=NUM_STAGES if phase == 1 else 1):
            position = start + offs_n
            visible = (position >= lowest) & (position < end)
            entry, token = locate(start, offs_n, KV_BLOCK_SIZE, BLOCK_N)
            if phase != 1 and KV_BLOCK_SIZE % BLOCK_N != 0:
                block = tl.load(table_ptr + entry, mask=visible, other=0).to(tl.int64)
            else:
                block = tl.load(table_ptr + entry).to(tl.int64)
            if NUM_BLOCKS is not None:
                tl.device_assert(block < NUM_BLOCKS, "block_table: a block past the pool")
            if phase != 1:
                visible &= block > 0

            if BY_DESCRIPTOR:
                corner = [block.to(tl.int32), kv_head, start % KV_BLOCK_SIZE, 0]
                key = key_cache.load(corner).reshape(BLOCK_N, BLOCK_D)
            else:
                rows = block * stride_key_block + token.to(INDEX) * stride_key_token
                key = gather(key_cache, rows, key_columns, visible, KEY_MAIN, phase != 1)
            key = key.to(DOT_DTYPE)
            scores = tl.dot(query, key.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
            if BLOCK_TAIL > 0:
                tail_columns = offs_tail.to(INDEX) * stride_key_dim
                tail = gather(
                    key_cache, rows, tail_columns, visible, HEAD_SIZE - BLOCK_D, phase != 1
                ).to(DOT_DTYPE)
                scores = tl.dot(query_tail, tail.T, scores, input_precision=PRECISION)
            if SOFT_CAP is not None:
                scores = capped(scores, factor, SOFT_CAP)
            if phase != 1:
                seen = visible[None, :] & (position[None, :] <= positions[:, None])
                if window is not None:
                    seen &= position[None, :] > positions[:, None] - window
                scores = tl.where(seen, scores, float("-inf"))

            if IS_LATENT:
                value = key
            elif BY_DESCRIPTOR:
                value = value_cache.load(corner).reshape(BLOCK_N, BLOCK_V)
                if phase != 1:
                    # a descriptor cannot leave out the unwritten end of a block, and 0 * NaN is NaN
                    value = tl.where(visible[:, None], value, 0.0)
            else:
                if not SAME_STRIDES:
                    rows = block * stride_value_block + token.to(INDEX) * stride_value_token
                value = gather(value_cache, rows, value_columns, visible, VALUE_SIZE, phase != 1)
            row_max, row_sum, acc = accumulate(
                scores, value.to(DOT_DTYPE), row_max, row_sum, acc, factor, SOFT_CAP, PRECISION
            )

    if tl.load(item_ptr + 7) == 1:
        acc, lse = finish(row_max, row_sum, acc, sinks_ptr, v_scale_ptr, heads, mask_m)
        store_rows(
            out_ptr, lse_ptr, acc, lse, tokens, heads, mask_m, offs_v,
            stride_out_token, stride_out_head, stride_out_dim, VALUE_SIZE,
            TILES_H // tl.cdiv(GROUP, HEADS_PER_TILE) * GROUP,
        )  # fmt: skip
    else:
        slot = tl.load(item_ptr + 6).to(tl.int64) * TILES_H + pid_h
        rows = slot * BLOCK_M + offs_m
        tl.store(partial_acc_ptr + rows[:, None] * BLOCK_V + offs_v[None, :], acc)
        tl.store(partial_stats_ptr + 2 * rows, row_max)
        tl.store(partial_stats_ptr + 2 * rows + 1, row_sum)
