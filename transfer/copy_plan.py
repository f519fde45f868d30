"""A copy plan: the strided rows between two ranks, made once, and the indices of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int64, Integer

from blockstride.transfer.group_plan import GroupPlan, RowSide
from blockstride.transfer.request import TransferRequest, group_pairs

MAX_INDICES = 1 << 31
"""Descriptors of one prepared list that int32 can number, as NIXL wants it."""

Side = Literal["local", "remote"]


class Indices(NamedTuple):
    """Descriptors to copy, pair by pair: on the wire int32, ready for `make_prepped_xfer`.

    Attributes:
        local: Descriptors of the local list, ascending.
        remote: Descriptors of the remote list.
    """

    local: Integer[np.ndarray, " descriptors"]
    remote: Integer[np.ndarray, " descriptors"]


@dataclass(frozen=True)
class CopyPlan:
    """Strided rows that take blocks of all groups from one rank's pools to another's.

    Row `i` of the local list and row `i` of the remote list are copies of each other's bytes; a
    request says for which blocks. Rows of a group are as many descriptors as its pool has blocks.

    Attributes:
        remote_rank: The rank that is read from.
        groups: A plan for each pair of groups.
    """

    remote_rank: int
    groups: tuple[GroupPlan, ...]

    @cached_property
    def num_descriptors(self) -> int:
        """Descriptors of the longer of the two prepared lists."""
        return max(
            sum(len(end.offsets) * end.count for end in self.sides(side)) for side in get_args(Side)
        )

    def sides(self, side: Side) -> list[RowSide]:
        """One end of every group plan."""
        return [plan.local if side == "local" else plan.remote for plan in self.groups]

    def rows(
        self, side: Side, addresses: Mapping[int, int], device: int = 0
    ) -> Int64[np.ndarray, "rows 5"]:
        """The strided rows of one side, as `prep_xfer_dlist` takes them.

        Args:
            side: Which end.
            addresses: Pool number -> address of its storage on that rank.
            device: Device number of that storage.

        Returns:
            Address, length, device, stride and count of each row, all in bytes but the count.
        """
        parts = []
        for plan, end in zip(self.groups, self.sides(side), strict=True):
            rows = np.empty((len(plan.lengths), 5), dtype=np.int64)
            rows[:, 0] = end.offsets + addresses[end.pool]
            rows[:, 1] = plan.lengths
            rows[:, 2:] = device, end.stride, end.count
            parts.append(rows)
        return np.concatenate(parts) if parts else np.empty((0, 5), dtype=np.int64)

    @cached_property
    def _bases(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each group, the number of each row's first descriptor on both sides, as columns."""
        dtype = np.int32 if self.num_descriptors < MAX_INDICES else np.int64
        bases, first = [], [0, 0]
        for plan in self.groups:
            columns, rows = [], len(plan.lengths)
            for i, end in enumerate((plan.local, plan.remote)):
                column = first[i] + np.arange(rows, dtype=np.int64) * end.count
                columns.append(column.astype(dtype)[:, None])
                first[i] += rows * end.count
            bases.append((columns[0], columns[1]))
        return bases

    def indices(self, request: TransferRequest) -> Indices:
        """The index arrays of a request: row * num_blocks + block id, and nothing else.

        Raises:
            ValueError: A block that the reader wants is not among the producer's.
        """
        local, remote = [], []
        for plan, (local_bases, remote_bases) in zip(self.groups, self._bases, strict=True):
            for track, (local_blocks, remote_blocks) in group_pairs(plan, request):
                local.append((local_bases[track.rows] + local_blocks).ravel())
                remote.append((remote_bases[track.rows] + remote_blocks).ravel())
        return Indices(_join(local), _join(remote))


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
