"""The query rows of an attention program: which they are, and their queries as it multiplies them.

Rows are (query token, query head) pairs that share a key-value head, so that one tile of keys
serves them all.
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.online_softmax import LOG2_E
from blockstride.kernels.attention.gpu.work_item import FIRST_TOKEN, SEQUENCE


@triton.jit
def query_rows(
    item_ptr, query_start_loc_ptr, pid_h, offs_m,
    GROUP: tl.constexpr, HEADS_PER_TILE: tl.constexpr, TOKENS_PER_TILE: tl.constexpr,
):  # fmt: skip
    """Each row's token in the step, offset in its query, head, and whether it exists."""
    tiles_h: tl.constexpr = (GROUP + HEADS_PER_TILE - 1) // HEADS_PER_TILE
    sequence = tl.load(item_ptr + SEQUENCE)
    query_start = tl.load(query_start_loc_ptr + sequence)
    query_len = tl.load(query_start_loc_ptr + sequence + 1) - query_start
    offset = tl.load(item_ptr + FIRST_TOKEN) + offs_m // HEADS_PER_TILE
    in_group = pid_h % tiles_h * HEADS_PER_TILE + offs_m % HEADS_PER_TILE
    exists = (offs_m < TOKENS_PER_TILE * HEADS_PER_TILE) & (in_group < GROUP) & (offset < query_len)
    return query_start + offset, offset, pid_h // tiles_h * GROUP + in_group, exists


@triton.jit
def load_queries(
    query_ptr, tokens, heads, offs_d, mask_m, stride_token, stride_head, stride_dim,
    SIZE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Elements `offs_d` of each row's query, zeros past its end."""
    rows = query_ptr + (tokens.to(tl.int64) * stride_token + heads.to(tl.int64) * stride_head)
    return tl.load(
        rows[:, None] + offs_d[None, :] * stride_dim,
        mask=mask_m[:, None] & (offs_d < SIZE)[None, :],
        other=0.0,
    ).to(DTYPE)  # [BLOCK_M, BLOCK_D]


@triton.jit
def scaled_queries(
    query_ptr, tokens, heads, offs_d, mask_m, stride_token, stride_head, stride_dim,
    scale, k_scale_ptr,
    SIZE: tl.constexpr, DTYPE: tl.constexpr, ROW_INDEX: tl.constexpr, ANY_SIGN: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_TAIL: tl.constexpr,
):  # fmt: skip
    """Each row's query, its part past `BLOCK_D`, and the factor of its scores, in log2(e)."""
    query = load_queries(
        query_ptr, tokens, heads, offs_d, mask_m, stride_token, stride_head, stride_dim, SIZE, DTYPE
    )
    tail = query
    if BLOCK_TAIL > 0:
        offs_tail = BLOCK_D + tl.arange(0, BLOCK_TAIL).to(ROW_INDEX)
        tail = load_queries(
            query_ptr, tokens, heads, offs_tail, mask_m,
            stride_token, stride_head, stride_dim, SIZE, DTYPE,
        )  # fmt: skip
    factor = scale * LOG2_E
    if k_scale_ptr is not None:
        factor *= tl.load(k_scale_ptr)
    if ANY_SIGN:
        # the running maximum is one of products, so what is not positive turns the query instead;
        # NaN too: so it reaches what a row sees, and no row that sees nothing
        sign = tl.where(factor > 0.0, 1.0, tl.where(factor < 0.0, -1.0, factor * 0.0))
        query = (query * sign).to(DTYPE)
        tail = (tail * sign).to(DTYPE)
        factor = tl.where(tl.abs(factor) > 0.0, tl.abs(factor), 1.0)
    return query, tail, factor
