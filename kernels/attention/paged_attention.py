"""Attention over a paged cache: whole prompts, chunks, decode steps, and batches of them all."""

import math
from typing import Literal, overload

import torch
from jaxtyping import Float, Int32, Num
from torch import Tensor

from blockstride.checks import (
    FLOATS,
    expect,
    expect_ids,
    expect_own_memory,
    expect_scale,
    expect_tensor,
    values_are_readable,
)
from blockstride.kernels.attention.attention_schedule import (
    AttentionSchedule,
    expect_paged_queries,
    expect_schedule,
    what_fits,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton


@overload
def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    query_start_loc: Tensor, *, scale: float, window: int | None = None,
    soft_cap: float | None = None, sinks: Tensor | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, out: Tensor | None = None,
    schedule: AttentionSchedule | None = None, return_lse: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    query_start_loc: Tensor, *, scale: float, window: int | None = None,
    soft_cap: float | None = None, sinks: Tensor | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, out: Tensor | None = None,
    schedule: AttentionSchedule | None = None, return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def paged_attention(
    query: Float[Tensor, "num_tokens num_heads head_size"],
    key_cache: Num[Tensor, "num_blocks num_kv_heads block_size head_size"],
    value_cache: Num[Tensor, "num_blocks num_kv_heads block_size value_size"],
    block_table: Int32[Tensor, "num_seqs max_blocks"],
    seq_lens: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Tensor, " num_heads"] | None = None,
    k_scale: Float[Tensor, ""] | None = None,
    v_scale: Float[Tensor, ""] | None = None,
    out: Float[Tensor, "num_tokens num_heads value_size"] | None = None,
    schedule: AttentionSchedule | None = None,
    return_lse: bool = False,
) -> (
    Float[Tensor, "num_tokens num_heads value_size"]
    | tuple[Float[Tensor, "num_tokens num_heads value_size"], Float[Tensor, "num_tokens num_heads"]]
):
    """Attend causally from each query token to its own sequence, new tokens included.

    The cache holds the keys and values of the new tokens already. Query token `i` of a sequence
    has position `seq_len - query_len + i` and sees the tokens up to that position, so prompts,
    chunks with context and single decode tokens are one case and may share a batch. Query heads
    share key and value heads in groups of `num_heads // num_kv_heads`, neighbours together. For
    multi-head latent attention give one key head and `value_cache` as a slice of `key_cache`.

    Args:
        query: Queries of the new tokens.
        key_cache: Pool of keys with any strides, only read; tokens past `seq_lens` never.
        value_cache: Pool of values with any strides; their size may differ from the keys'.
        block_table: Blocks of each sequence in order; entries past its last block are not read.
            Ids are checked where they are on the host.
        seq_lens: Tokens of each sequence in the cache, new ones included. Those that a row of the
            block table has no room for are refused where lengths are on the host, and elsewhere not
            seen, as those of missing blocks are not.
        query_start_loc: Prefix sum of the number of new tokens of each sequence; a sequence may
            have none. Rows past the last sum are those of queries that see nothing.
        scale: What a query-key product is multiplied by; of any sign.
        window: Tokens that a query sees, itself included; all up to its own if not given.
        soft_cap: If given, a scaled product `s` becomes `soft_cap * tanh(s / soft_cap)`.
        sinks: A logit for each head that joins the softmax and has no value.
        k_scale: What a stored key is multiplied by; 1 if not given. Only for fp8 and int8 caches.
        v_scale: The same for values.
        out: Where the result goes; it must not overlap `query`.
        schedule: What `attention_schedule` planned for these arguments, if it was asked; the layers
            of a step share one.
        return_lse: Whether to return the logarithm of the softmax's denominator too.

    Returns:
        The attended values in the dtype of `query` (`out`, if that was given). With `return_lse`
        the pair of them and the natural logarithm of each denominator, sink included, in float32.
        A query that sees no token gets zeros, and minus infinity without a sink. The tokens of a
        block whose id is <= 0 are not read and not seen.

    Raises:
        ValueError: A shape, a device, the window or the soft-cap does not fit, `query_start_loc`
            does not fit the tokens, a length or an id is out of range, a scale comes with a cache
            that has none, or `schedule` was made for another call.
        TypeError: A dtype is not accepted.

    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", 4; Dao, "FlashAttention-2", 3.
    """
    given = {**locals()}
    expect_paged_queries(
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, window
    )
    if math.isnan(scale):
        expect(False, "scale", "a number", "nan")
    if soft_cap is not None and not soft_cap > 0:
        expect(False, "soft_cap", "a positive number, or None", soft_cap)
    if sinks is not None:
        expect_tensor(sinks, "sinks", (query.shape[1],), FLOATS, query.device)
    expect_scale(k_scale, "k_scale", key_cache)
    expect_scale(v_scale, "v_scale", value_cache)
    if out is not None:
        shape = (*query.shape[:2], value_cache.shape[3])
        expect_tensor(out, "out", shape, (query.dtype,), query.device)
        expect_own_memory(out, "out")
    on_triton = runs_on_triton(query)
    if on_triton and values_are_readable(block_table):
        used = _used_blocks(block_table, seq_lens, query_start_loc, value_cache.shape[2], window)
        expect_ids(used, "block_table", len(value_cache))
    if schedule is not None:
        expect_schedule(schedule, what_fits(query, key_cache, value_cache, block_table, window))
        given["schedule"] = schedule.work_lists
    return implementation(paged_attention, on_triton)(**given)


def _used_blocks(
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    block_size: int,
    window: int | None,
) -> Tensor:
    """The ids that some query asks for, in a row."""
    query_lens = query_start_loc.diff()
    ends = seq_lens * (query_lens > 0)
    begins = (seq_lens - query_lens - window + 1).clamp(min=0) if window else 0 * ends
    positions = torch.arange(block_table.shape[1], device=block_table.device) * block_size
    is_used = (positions < ends[:, None]) & (positions + block_size > begins[:, None])
    return block_table[is_used]
