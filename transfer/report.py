"""Report: what a request would cost, counted from the plan before anything moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from blockstride.transfer.copy_plan import CopyPlan
from blockstride.transfer.group_plan import GroupPlan, RowSide, Track
from blockstride.transfer.request import needed_tokens, periods


@dataclass(frozen=True)
class TransferReport:
    """Cost of handing over one sequence.

    Attributes:
        descriptors: Pairs of byte ranges, before a transport merges neighbours.
        nbytes: Bytes that move.
        lower_bound: The fewest pairs that any plan between these memories could do with: on the
            side with more of them, the separate ranges that the same bytes form within blocks.
        run_lengths: Bytes of a run -> number of runs.
    """

    descriptors: int
    nbytes: int
    lower_bound: int
    run_lengths: Mapping[int, int]


def report(copies: Iterable[CopyPlan], num_tokens: int) -> TransferReport:
    """The cost of a sequence of `num_tokens`, of which the reader has nothing yet.

    Args:
        copies: Plans, one for each remote rank.
        num_tokens: Tokens of the sequence; groups without tokens move one state.
    """
    lengths: Counter[int] = Counter()
    bound = 0
    for plan in (plan for copy in copies for plan in copy.groups):
        spans = [needed_periods(plan, track, num_tokens) for track in plan.tracks]
        for track, span in zip(plan.tracks, spans, strict=True):
            runs = zip(*np.unique(plan.lengths[track.rows], return_counts=True), strict=True)
            lengths.update({int(length): int(count) * len(span) for length, count in runs})
        edges = sorted({edge for span in spans for edge in (span.start, span.stop)})
        for first, stop in pairwise(edges):
            active = [t for t, span in zip(plan.tracks, spans, strict=True) if first in span]
            bound += (stop - first) * _separate_ranges(plan, active)
    descriptors = sum(lengths.values())
    nbytes = sum(length * count for length, count in lengths.items())
    return TransferReport(descriptors, nbytes, bound, {k: v for k, v in lengths.items() if v})


def needed_periods(plan: GroupPlan, track: Track, num_tokens: int) -> range:
    """The periods of a track that a sequence of `num_tokens` needs; one for a state."""
    if plan.span == 0:
        return range(min(num_tokens, 1))
    return periods(plan, track, needed_tokens(plan, num_tokens))


def _separate_ranges(plan: GroupPlan, tracks: list[Track]) -> int:
    """Separate byte ranges of some tracks of one period, on the side that has more of them."""
    sides = (
        (plan.local, [track.local_block for track in tracks]),
        (plan.remote, [track.remote_block for track in tracks]),
    )
    rows = [np.arange(track.rows.start, track.rows.stop) for track in tracks]
    return max(_ranges(side, plan.lengths, rows, blocks) for side, blocks in sides) if rows else 0


def _ranges(side: RowSide, lengths: np.ndarray, rows: list[np.ndarray], blocks: list[int]) -> int:
    which = np.concatenate(rows)
    block = np.repeat(blocks, [len(part) for part in rows])
    order = np.lexsort((side.offsets[which], block))
    which, block = which[order], block[order]
    start, stop = side.offsets[which], side.offsets[which] + lengths[which]
    return 1 + int(((start[1:] != stop[:-1]) | (block[1:] != block[:-1])).sum())
