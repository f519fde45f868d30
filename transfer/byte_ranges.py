"""Byte ranges: where the descriptors that an index array names lie, as a transport sees them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from blockstride.checks import expect
from blockstride.transfer.copy_plan import CopyPlan, Indices, Side

POOL_BITS = 48
"""Addresses here: pool number, then byte of its storage."""


class RowList:
    """The strided rows of one side, as far as indices are concerned.

    Args:
        rows: Address, length, device, stride and count of each row.
    """

    def __init__(self, rows: Int64[np.ndarray, "rows 5"]) -> None:
        self.ends = np.cumsum(rows[:, 4])
        self.lengths = rows[:, 1]
        self.dense = rows[:, 1] == rows[:, 3]

    def rows_of(self, indices: Integer[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The row of every descriptor.

        Raises:
            ValueError: An index outside the list.
        """
        row = np.searchsorted(self.ends, indices, side="right")
        inside = len(row) == 0 or (int(indices.min()) >= 0 and int(row.max()) < len(self.ends))
        expect(inside, "indices", "descriptors of the prepared list", "others")
        return row


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


def byte_ranges(copy: CopyPlan, indices: Indices, side: Side) -> Ranges:
    """Pool, first byte and length of every descriptor to copy.

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
    prepared = RowList(rows)
    row = prepared.rows_of(which)
    address = rows[row, 0] + (which - (prepared.ends - rows[:, 4])[row]) * rows[row, 3]
    return Ranges(address >> POOL_BITS, address & ((1 << POOL_BITS) - 1), rows[row, 1])
