"""From scheduled requests to the tensors of one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from blockstride.kernels import PAD_SLOT_ID
from blockstride.layouts import GroupPlacement
from blockstride.models.batch import GroupTable, StepBatch
from blockstride.models.engine.block_manager import BlockManager, Copy
from blockstride.models.engine.scheduler import Scheduled


def make_batch(
    step: Sequence[Scheduled],
    blocks: BlockManager,
    groups: Sequence[GroupPlacement],
) -> StepBatch:
    """The tensors of a step, on the CPU: tokens request after request, tables of every group.

    Args:
        step: Requests that run, with the tokens of each.
        blocks: Where their blocks are.
        groups: Placement of each group, in the order of the block manager's tables.
    """
    starts = np.array([s.request.num_cached for s in step], np.int64)
    lens = np.array([s.num_new for s in step], np.int64)
    ends = starts + lens
    query_start_loc = np.concatenate([[0], lens.cumsum()])
    tokens = [t for s, end in zip(step, ends, strict=True) for t in _new_tokens(s, int(end))]
    sequence = np.repeat(np.arange(len(step)), lens)
    position = np.arange(len(tokens)) - query_start_loc[sequence] + starts[sequence]
    rows = [blocks.row(s.request.request_id) for s in step]
    known = np.array([s.request.num_tokens for s in step])
    # a request whose prompt is not done yet samples nothing
    logits_rows = query_start_loc[1:][ends == known] - 1
    if any(s.request.scores_prompt for s in step):
        logits_rows = np.concatenate([logits_rows, *_scored(step, query_start_loc)])
    tables = tuple(
        _group_table(table, group, int(ends.max()), sequence, position)
        for table, group in zip(blocks.tables(rows), groups, strict=True)
    )
    stored = np.array([s.request.num_stored for s in step])
    if (stored > starts).any():
        is_stored = position < stored[sequence]
        pairs = zip(tables, groups, strict=True)
        tables = tuple(_without(table, group, is_stored) for table, group in pairs)
    return StepBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int64),
        query_start_loc=_tensor(query_start_loc.astype(np.int32)),
        positions=_tensor(position),
        seq_lens=_tensor(ends.astype(np.int32)),
        known_lens=_tensor(known.astype(np.int32)),
        has_initial_state=_tensor(starts > 0),
        tables=tables,
        logits_rows=_tensor(logits_rows),
        max_query_len=int(lens.max()),
        is_decode=bool((lens == 1).all() and (starts > 0).all()),
        before=_copies(s.before for s in step),
        after=_copies(s.after for s in step),
    )


def _without(table: GroupTable, group: GroupPlacement, is_stored: np.ndarray) -> GroupTable:
    """A table whose tokens are not written again that are stored where all are kept."""
    if table.slot_mapping is None or group.group.spec.window is not None:
        return table
    slots = table.slot_mapping.masked_fill(_tensor(is_stored), PAD_SLOT_ID)
    return GroupTable(table.block_table, slots)


def _copies(of_requests: Iterable[Sequence[Copy]]) -> Tensor | None:
    copies = [copy for copies in of_requests for copy in copies]
    return torch.tensor(copies, dtype=torch.int32) if copies else None


def _new_tokens(scheduled: Scheduled, end: int) -> list[int]:
    return scheduled.request.tokens(end - scheduled.num_new, end)


def _scored(step: Sequence[Scheduled], query_start_loc: np.ndarray) -> list[np.ndarray]:
    """Rows behind those that are sampled from, which tell how likely tokens of prompts were."""
    return [
        np.arange(s.scored.start, s.scored.stop) - s.request.num_cached + start
        for s, start in zip(step, query_start_loc, strict=False)
        if s.scored
    ]


def _group_table(
    table: np.ndarray,
    group: GroupPlacement,
    max_len: int,
    sequence: np.ndarray,
    position: np.ndarray,
) -> GroupTable:
    if not group.group.spec.has_tokens:
        return GroupTable(_tensor(table), None)
    size, parts = group.block_size, group.kernel_blocks
    slots = table[sequence, position // size].astype(np.int64) * size + position % size
    table = table[:, : -(-max_len // size)]
    if parts > 1:
        kernel_blocks = table[:, :, None] * parts + np.arange(parts, dtype=np.int32)
        # no kernel block of the null block may look like a real one
        table = np.where(table[:, :, None] > 0, kernel_blocks, 0).reshape(len(table), -1)
    return GroupTable(_tensor(table), _tensor(slots))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
