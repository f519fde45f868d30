"""Planning a step of paged attention once, for all layers that share its shapes."""

from typing import Any

from jaxtyping import Float, Int32, Num
from torch import Tensor

from blockstride.kernels.checks import expect
from blockstride.kernels.dispatch import implementation, runs_on_triton

AttentionSchedule = tuple[Any, ...]
"""What `attention_schedule` planned, for `paged_attention` alone to read."""


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
    shapes, dtypes and strides may share one, which saves each of them a dozen small launches. The
    arguments are those of the call and are not checked again.

    Args:
        query: Queries of the new tokens; read for shape, dtype and device, like the caches.
        key_cache: Pool of keys.
        value_cache: Pool of values.
        block_table: Blocks of each sequence.
        seq_lens: Tokens of each sequence, new ones included.
        query_start_loc: Prefix sum of the query lengths.
        window: As in the call.
        max_query_len: An upper bound of the query lengths in tokens, if it is known without asking
            the device: a step of short queries then takes one launch less.

    Returns:
        The plan, valid for this step on the current stream; None on a CPU, where none is needed.

    Raises:
        ValueError: A window or a length that is not positive.
    """
    expect(window is None or window >= 1, "window", "at least one token, or None", window)
    known = max_query_len is not None
    expect(not known or max_query_len >= 0, "max_query_len", "at least 0, or None", max_query_len)
    if not runs_on_triton(query) or len(query) == 0:
        return None
    plan = implementation("paged_attention", "attention_schedule", True)
    return plan(
        query,
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        query_start_loc,
        window=window,
        max_query_len=max_query_len,
    )
