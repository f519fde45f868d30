"""Chunks: a request's index arrays cut into what one NIXL call moves, and what that will cost.

NIXL merges neighbours in the index arrays where both sides go on to the next descriptor of one
dense row (stride = length), and nothing else; so the number of descriptors it will use is known
before it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from blockstride.transfer.byte_ranges import RowList
from blockstride.transfer.copy_plan import Indices

MAX_CHUNK_DESCRIPTORS = 1 << 14
"""Descriptors of one call at most: about 30 ms over process memory."""


class Chunk(NamedTuple):
    """What one call moves.

    Attributes:
        indices: Its part of the index arrays.
        nbytes: Bytes.
        merged: Descriptors that NIXL makes of it.
    """

    indices: Indices
    nbytes: int
    merged: int


def follows(
    local: RowList, remote: RowList, indices: Indices
) -> tuple[Bool[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """For each descriptor, whether it continues the one before it, and its length."""
    ours, theirs = local.rows_of(indices.local), remote.rows_of(indices.remote)
    joins = np.zeros(len(ours), dtype=np.bool_)
    joins[1:] = (
        (np.diff(indices.local) == 1)
        & (np.diff(indices.remote) == 1)
        & (ours[1:] == ours[:-1])
        & (theirs[1:] == theirs[:-1])
        & local.dense[ours[1:]]
        & remote.dense[theirs[1:]]
    )
    return joins, local.lengths[ours]


def cut(local: RowList, remote: RowList, indices: Indices, chunk_bytes: int) -> Iterator[Chunk]:
    """The chunks of a request, in order.

    Args:
        local: The plan's local rows.
        remote: Its remote rows.
        indices: What to move.
        chunk_bytes: A chunk ends before it gets larger, unless a single descriptor is.
    """
    joins, lengths = follows(local, remote, indices)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + chunk_bytes, side="right"))
        stop = min(max(stop, start + 1), start + MAX_CHUNK_DESCRIPTORS)
        merged = stop - start - int(joins[start + 1 : stop].sum())
        part = Indices(indices.local[start:stop], indices.remote[start:stop])
        yield Chunk(part, int(ends[min(stop, len(ends)) - 1]) - before, merged)
        start = stop
