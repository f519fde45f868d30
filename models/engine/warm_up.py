"""Warming up: steps of padding that have everything compiled before a request comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from blockstride.kernels import PAD_SLOT_ID
from blockstride.layouts import GroupPlacement
from blockstride.models.batch import GroupTable, StepBatch
from blockstride.models.engine.config import EngineConfig

CPU_PROMPT = 40
"""Tokens that take every way through the kernels for CPUs, whose programs know no sizes."""

RECORDED = 2
"""How often a decode step comes until it is recorded and replayed."""


def warm_up_batches(
    config: EngineConfig, max_len: int, groups: Sequence[GroupPlacement], device: torch.device
) -> Iterator[StepBatch]:
    """Steps of all the sizes that make a difference to what is compiled, none of which is kept.

    On a GPU a kernel is compiled for a few sizes of tile, which follow from how many tokens and
    sequences there are; powers of two meet all of them.

    Args:
        config: How steps are formed.
        max_len: Most tokens of a sequence.
        groups: Groups of the caches.
        device: Where they will run.
    """
    rows, most = config.max_num_seqs, config.max_num_batched_tokens
    if device.type == "cpu":
        prompt = [min(CPU_PROMPT, max_len - 1)]
        yield padding(prompt, groups, has_copies=config.prefix_caching)
        for _ in range(RECORDED):
            yield padding([1], groups, is_decode=True)
        return
    longest = min(max_len - 1, most, config.prefill_chunk or most)
    for length in _powers(longest):
        yield padding([length], groups)
    for count in _powers(min(rows, most)):
        for i in range(RECORDED):
            has_copies = config.prefix_caching and i == 0
            yield padding([1] * count, groups, is_decode=True, has_copies=has_copies)
    for length in _powers(min(longest, most // rows)):
        yield padding([length] + [1] * (rows - 1), groups)
        yield padding([length] * rows, groups)


def padding(
    lengths: Sequence[int],
    groups: Sequence[GroupPlacement],
    *,
    is_decode: bool = False,
    has_copies: bool = False,
) -> StepBatch:
    """A step of sequences without blocks, which therefore neither reads nor writes a cache.

    Args:
        lengths: New tokens of each sequence.
        groups: Groups of the caches.
        is_decode: Whether each is the second token of its sequence.
        has_copies: Whether a block of each group is copied, or would be if it were one.
    """
    new = torch.tensor(lengths, dtype=torch.int32)
    starts = torch.nn.functional.pad(new.cumsum(0, dtype=torch.int32), (1, 0))
    num_tokens = int(starts[-1])
    lens = new + is_decode
    return StepBatch(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        query_start_loc=starts,
        positions=torch.zeros(num_tokens, dtype=torch.int64),
        seq_lens=lens,
        known_lens=lens,
        has_initial_state=torch.full((len(lengths),), is_decode),
        tables=tuple(
            _empty_table(group, len(lengths), num_tokens, int(lens.max())) for group in groups
        ),
        logits_rows=starts[1:].long() - 1,
        max_query_len=int(new.max()),
        is_decode=is_decode,
        before=torch.tensor([[i, 0, 0] for i in range(len(groups))]).int() if has_copies else None,
    )


def _empty_table(group: GroupPlacement, num_seqs: int, num_tokens: int, length: int) -> GroupTable:
    if not group.group.spec.has_tokens:
        return GroupTable(torch.zeros((num_seqs, 1), dtype=torch.int32), None)
    width = -(-length // group.block_size) * group.kernel_blocks
    table = torch.zeros((num_seqs, width), dtype=torch.int32)
    return GroupTable(table, torch.full((num_tokens,), PAD_SLOT_ID))


def _powers(limit: int) -> list[int]:
    """1, 2, 4, ... and the limit itself."""
    return sorted({limit, *(1 << i for i in range(limit.bit_length()) if 1 << i <= limit)})
