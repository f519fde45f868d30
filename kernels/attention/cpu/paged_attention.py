"""Paged attention for CPUs: decode rows straight from the pages, prompts through BLAS."""

import math

from torch import Tensor

from blockstride.kernels.attention.cpu.decode import MAX_HEAD_SIZE, MAX_ROWS, attend_rows
from blockstride.kernels.attention.cpu.prefill import attend_prompt
from blockstride.kernels.attention.cpu.softmax import Softmax
from blockstride.kernels.common.cpu.slack import zero_slack
from blockstride.kernels.common.cpu.tensors import (
    delivered,
    float_rows,
    float_vector,
    is_float_rows,
)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor | None,
    schedule: tuple[int] | None,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `blockstride.kernels.paged_attention`."""
    num_tokens, num_heads, head_size = query.shape
    _, num_kv_heads, _, value_size = value_cache.shape
    group = num_heads // num_kv_heads
    rows, dtype, (sinks, _) = float_rows(query), query.dtype, float_vector(sinks)
    block_table, seq_lens = block_table.contiguous(), seq_lens.contiguous()
    query_start_loc = query_start_loc.contiguous()
    result = out
    if result is None or not is_float_rows(result):
        result = rows.new_empty(num_tokens, num_heads, value_size)
    lse = rows.new_empty(num_tokens, num_heads) if return_lse else None
    if lse is not None:
        # what rows of no sequence see
        lse[:] = -math.inf if sinks is None else sinks
    zero_slack(result, query_start_loc)
    softmax = Softmax(
        scale if k_scale is None else scale * k_scale.item(),
        window,
        soft_cap,
        sinks,
        1.0 if v_scale is None else v_scale.item(),
    )
    pools = key_cache, value_cache, block_table, seq_lens, query_start_loc
    if schedule is None:
        most = MAX_ROWS // group if head_size <= MAX_HEAD_SIZE else 0
        longest, most_tokens = _attend_prompts(rows, *pools, softmax, result, lse, most)
    else:
        # nothing but sequences of few rows, as long as there is room for in their blocks
        (most_tokens,) = schedule
        longest = block_table.shape[1] * value_cache.shape[2]
    if most_tokens > 0:
        call = rows, *pools, softmax, result, lse
        attend_rows(*call, longest=longest, max_rows=most_tokens * group)
    attended = delivered(result, out, dtype)
    return attended if lse is None else (attended, lse)


def attention_schedule(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    window: int | None,
    max_query_len: int | None,
) -> tuple[int] | None:
    """See `blockstride.kernels.attention_schedule`; a plan is how few new tokens there are."""
    group = query.shape[1] // value_cache.shape[1]
    if max_query_len is None or query.shape[2] > MAX_HEAD_SIZE:
        return None
    return (max_query_len,) if 0 < max_query_len * group <= MAX_ROWS else None


def _attend_prompts(
    rows: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    softmax: Softmax,
    result: Tensor,
    lse: Tensor | None,
    most: int,
) -> tuple[int, int]:
    """Attend for the sequences that have more than `most` new tokens.

    Returns:
        Of the others: tokens of the longest, and most new tokens; 0 and 0 if there are none.
    """
    starts, longest, most_tokens = query_start_loc.tolist(), 0, 0
    for i, seq_len in enumerate(seq_lens.tolist()):
        start, stop = starts[i], starts[i + 1]
        if stop - start <= most:
            longest, most_tokens = max(longest, seq_len), max(most_tokens, stop - start)
        else:
            attend_prompt(
                rows[start:stop],
                key_cache,
                value_cache,
                block_table[i],
                seq_len,
                softmax,
                result[start:stop],
                None if lse is None else lse[start:stop],
            )
    return longest, most_tokens
