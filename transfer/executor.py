"""An executor in one process: copies what a plan says with numpy, the oracle of transports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from blockstride.checks import expect
from blockstride.transfer.copy_plan import CopyPlan, Indices, Side

POOL_BITS = 48
"""Addresses of the executor: pool number, then byte of its storage."""

LONG_RUN = 1 << 12
"""Bytes above which a run is copied by itself."""


class Ranges(NamedTuple):
    """Byte ranges in the pools of a rank.

    Attributes:
        pool: Pool of each.
        first: First byte of its storage.
        length: Bytes.
    """

    pool: Int64[np.ndarray, " ranges"]
    first: Int64[np.ndarray, " ranges"]
    length: Int64[np.ndarray, " ranges"]


Storages = Mapping[int, UInt8[np.ndarray, "_"]]
"""Pool number -> the bytes of its storage."""


def byte_ranges(copy: CopyPlan, indices: Indices, side: Side) -> Ranges:
    """Pool, first byte and length of every descriptor to copy, as a transport would see them.

    Args:
        copy: The plan whose lists are indexed.
        indices: Index arrays.
        side: Which end.

    Raises:
        ValueError: An index outside the prepared list.
    """
    pools = {end.pool for end in copy.sides(side)}
    rows = copy.rows(side, {pool: pool << POOL_BITS for pool in pools})
    which = indices.local if side == "local" else indices.remote
    ends = np.cumsum(rows[:, 4])
    row = np.searchsorted(ends, which, side="right")
    in_list = len(which) == 0 or (int(which.min()) >= 0 and int(row.max()) < len(rows))
    expect(in_list, f"{side} indices", "within the prepared list", "others")
    address = rows[row, 0] + (which - (ends - rows[:, 4])[row]) * rows[row, 3]
    return Ranges(address >> POOL_BITS, address & ((1 << POOL_BITS) - 1), rows[row, 1])


def execute(copy: CopyPlan, indices: Indices, local: Storages, remote: Storages) -> None:
    """Copies the bytes of a request, descriptor by descriptor.

    Args:
        copy: The plan.
        indices: Index arrays that it made.
        local: Storages that are written.
        remote: Storages that are read.

    Raises:
        ValueError: A descriptor outside its storage, or of different lengths on both sides.
    """
    to, start = byte_ranges(copy, indices, "local"), byte_ranges(copy, indices, "remote")
    for side, ranges, storages in (("local", to, local), ("remote", start, remote)):
        for pool in np.unique(ranges.pool).tolist():
            stop = int((ranges.first + ranges.length)[ranges.pool == pool].max())
            size = len(storages[pool])
            expect(stop <= size, f"{side} storage {pool}", f"at least {stop} bytes", size)
    expect(bool((to.length == start.length).all()), "lengths", "equal on both sides", "others")
    columns = (to.pool, start.pool, to.length)
    kinds = np.ravel_multi_index(columns, [int(max(c, default=0)) + 1 for c in columns])
    for kind, first in zip(*np.unique(kinds, return_index=True), strict=True):
        target, source, size = (int(column[first]) for column in columns)
        which = kinds == kind
        _copy(local[target], to.first[which], remote[source], start.first[which], size)


def _copy(
    target: np.ndarray, to: np.ndarray, source: np.ndarray, start: np.ndarray, size: int
) -> None:
    if size > LONG_RUN:
        for a, b in zip(to.tolist(), start.tolist(), strict=True):
            target[a : a + size] = source[b : b + size]
        return
    steps = np.arange(size)
    target[to[:, None] + steps] = source[start[:, None] + steps]
