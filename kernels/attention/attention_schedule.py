"""Planning a step of paged attention once, for all layers that share its shapes."""

from typing import Any, NamedTuple

from jaxtyping import Float, Int32, Num
from torch import Tensor

from blockstride.checks import (
    CACHE_DTYPES,
    FLOATS,
    INT32,
    expect,
    expect_query_start_loc,
    expect_tensor,
    shape_of,
    values_are_readable,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton


class AttentionSchedule(NamedTuple):
    """What `attention_schedule` planned, and the calls of `paged_attention` that it fits.

    Attributes:
        work_lists: For the kernels alone to read.
        fits: What was planned for, by argument: a call that differs is refused.
    """

    work_lists: tuple[Any, ...]
    fits: dict[str, object]


def attention_schedule(
    query: Float[Tensor, "num_tokens num_heads head_size"],
    key_cache: Num[Tensor, "num_blocks num_kv_heads block_size head_size"],
    value_cache: Num[Tensor, "num_blocks num_kv_heads block_size value_size"],
    block_table: Int32[Tensor, "num_seqs max_blocks"],
    seq_lens: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    *,
    window: int | None = None,
    max_query_len: int | None = None,
) -> AttentionSchedule | None:
    """Plan a call of `paged_attention` with these arguments: which program walks which tokens.

    A call without a plan makes its own. Layers of one step whose queries and caches have the same
    shapes, dtypes and strides may share one, which saves each of them a dozen small launches; a
    call that differs is refused. Lengths are read here, and not again in the calls.

    Args:
        query: Queries of the new tokens; read for shape, dtype and device, like the caches.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        block_table: Blocks of each sequence.
        seq_lens: Tokens of each sequence, new ones included.
        query_start_loc: Prefix sum of the query lengths.
        window: As in the call.
        max_query_len: An upper bound of the query lengths in tokens, if it is known without asking
            the device: a step of short queries then takes one launch less. One that is too small
            is refused where values can be read; elsewhere it costs time alone.

    Returns:
        The plan, valid for this step on the current stream. On a CPU there is one for short queries
        whose bound is given; with it a call looks at no lengths. Else None, which is no plan.

    Raises:
        ValueError: A window or a length that is not positive, or what `paged_attention` refuses in
            these arguments.
        TypeError: A dtype is not accepted.
    """
    given = {**locals()}
    expect_paged_queries(
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, window
    )
    if max_query_len is not None:
        expect(max_query_len >= 0, "max_query_len", "at least 0, or None", max_query_len)
        if values_are_readable(query_start_loc) and len(seq_lens) > 0:
            longest = int(query_start_loc.diff().max())
            wanted = f"at least the {longest} tokens of a query"
            expect(max_query_len >= longest, "max_query_len", wanted, max_query_len)
    if len(query) == 0:
        return None
    work_lists = implementation(attention_schedule, runs_on_triton(query))(**given)
    if work_lists is None:
        return None
    fits = what_fits(query, key_cache, value_cache, block_table, window)
    return AttentionSchedule(work_lists, fits)


def what_fits(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, window: int | None
) -> dict[str, object]:
    """All that a plan follows from but for the lengths, by argument."""
    is_latent = key_cache.data_ptr() == value_cache.data_ptr()
    return {
        "query": (query.shape, query.stride(), query.dtype, query.device, _alignment(query)),
        "key_cache": (*_paging(key_cache), key_cache.shape[3]),
        "value_cache": (*_paging(value_cache), value_cache.shape[3], is_latent),
        "block_table": block_table.shape,
        "window": window,
    }


def _paging(cache: Tensor) -> tuple[object, ...]:
    return cache.shape[1:3], cache.stride(), cache.dtype, _alignment(cache)


def _alignment(tensor: Tensor) -> str:
    """What a tensor map asks of an address."""
    return "aligned to 16 bytes" if tensor.data_ptr() % 16 == 0 else "not aligned to 16 bytes"


def expect_schedule(schedule: AttentionSchedule, found: dict[str, object]) -> None:
    """Raise unless a plan was made for a call of these arguments, as `what_fits` tells.

    Raises:
        ValueError: It was made for others.
    """
    if schedule.fits != found:
        for name, planned in schedule.fits.items():
            expect(planned == found[name], name, f"what was planned for, {planned}", found[name])


def expect_paged_queries(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    window: int | None,
) -> None:
    """Raise unless queries and caches fit each other; what a plan and its calls have in common.

    Args:
        query: As in `paged_attention`, as are the others.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        block_table: Blocks of each sequence.
        seq_lens: Tokens of each sequence.
        query_start_loc: Prefix sum of the query lengths.
        window: Tokens that a query sees.

    Raises:
        ValueError: A shape, a device or the window does not fit, or a value that can be read.
        TypeError: A dtype is not accepted.
    """
    num_tokens, num_heads, head_size = shape_of(query, "query", 3)
    num_blocks, num_kv_heads, block_size, value_size = shape_of(value_cache, "value_cache", 4)
    (num_seqs,), device = shape_of(seq_lens, "seq_lens", 1), query.device
    _, max_blocks = shape_of(block_table, "block_table", 2)
    pool = (num_blocks, num_kv_heads, block_size)
    expect_tensor(query, "query", (num_tokens, num_heads, head_size), FLOATS, device)
    expect_tensor(key_cache, "key_cache", (*pool, head_size), CACHE_DTYPES, device)
    expect_tensor(value_cache, "value_cache", (*pool, value_size), CACHE_DTYPES, device)
    expect_tensor(block_table, "block_table", (num_seqs, max_blocks), INT32, device)
    expect_tensor(seq_lens, "seq_lens", (num_seqs,), INT32, device)
    expect_tensor(query_start_loc, "query_start_loc", (num_seqs + 1,), INT32, device)
    expect_query_start_loc(query_start_loc, num_tokens)
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        expect(False, "query", f"a multiple of {num_kv_heads} heads", num_heads)
    if window is not None and window < 1:
        expect(False, "window", "at least one token, or None", window)
    if values_are_readable(seq_lens):
        lens, capacity = seq_lens.tolist(), max_blocks * block_size
        if lens and not 0 <= min(lens) <= max(lens) <= capacity:
            wanted = f"lengths from 0 to the {capacity} tokens of a row of blocks"
            expect(False, "seq_lens", wanted, lens)
