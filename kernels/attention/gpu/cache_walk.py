"""The walk of an attention program over its range of a cache, one tile of tokens after the other.

The tiles that every row sees whole need no mask and come in the middle, so only the ends of the
range pay for masks, bounds and windows.
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.cache_tiles import find_tokens, gather
from blockstride.kernels.attention.gpu.online_softmax import LOWEST, accumulate, capped, hidden


@triton.jit
def walk(
    query, query_tail, factor, positions, lowest, window, begin, full_begin, full_end, end,
    table_ptr, key_cache, value_cache, kv_head, offs_n, offs_d, offs_v,
    stride_key_block, stride_key_token: tl.constexpr, stride_key_dim: tl.constexpr,
    stride_value_block, stride_value_token: tl.constexpr, stride_value_dim: tl.constexpr,
    HEAD_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, KV_BLOCK_SIZE: tl.constexpr,
    SOFT_CAP: tl.constexpr, DOT_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    INDEX: tl.constexpr, ROW_INDEX: tl.constexpr, BY_DESCRIPTOR: tl.constexpr,
    IS_LATENT: tl.constexpr, SAME_STRIDES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_TAIL: tl.constexpr, BLOCK_V: tl.constexpr,
    NUM_STAGES: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """The running maximum, sum and weighted values of all rows after positions `begin` to `end`."""
    KEY_MAIN: tl.constexpr = HEAD_SIZE if HEAD_SIZE < BLOCK_D else BLOCK_D
    key_columns = offs_d.to(INDEX) * stride_key_dim
    value_columns = offs_v.to(INDEX) * stride_value_dim
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
            block, token, visible = find_tokens(
                table_ptr, start, offs_n, visible, KV_BLOCK_SIZE, BLOCK_N, phase != 1, NUM_BLOCKS
            )
            if BY_DESCRIPTOR:
                corner = [block.to(tl.int32), kv_head, start % KV_BLOCK_SIZE, 0]
                key = key_cache.load(corner).reshape(BLOCK_N, BLOCK_D)
            else:
                rows = block * stride_key_block + token.to(INDEX) * stride_key_token
                key = gather(key_cache, rows, key_columns, visible, KEY_MAIN, phase != 1)
            key = key.to(DOT_DTYPE)
            scores = tl.dot(query, key.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
            if BLOCK_TAIL > 0:
                offs_tail = BLOCK_D + tl.arange(0, BLOCK_TAIL).to(ROW_INDEX)
                columns = offs_tail.to(INDEX) * stride_key_dim
                tail = gather(key_cache, rows, columns, visible, HEAD_SIZE - BLOCK_D, phase != 1)
                tail = tail.to(DOT_DTYPE)
                scores = tl.dot(query_tail, tail.T, scores, input_precision=PRECISION)
            if SOFT_CAP is not None:
                scores = capped(scores, factor, SOFT_CAP)
            if phase != 1:
                scores = hidden(scores, position, visible, positions, window)

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
    return row_max, row_sum, acc
