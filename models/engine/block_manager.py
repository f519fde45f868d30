"""Block manager: which request owns which blocks of which pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64

from blockstride.layouts import NULL_BLOCK, GroupPlacement, PoolLayout


class BlockManager:
    """Hands out blocks of the pools and keeps one block table a request and group.

    Tables are rows of one array a group; entries of blocks that a request no longer needs (out of
    an attention window) are the null block. A block has one owner at a time.

    Args:
        pools: The pools; their groups are numbered across all of them, in order.
        max_num_seqs: Requests that can hold blocks at once.
        max_len: Most tokens of a request.
    """

    def __init__(self, pools: Sequence[PoolLayout], max_num_seqs: int, max_len: int) -> None:
        self.pools = tuple(pools)
        # lowest ids first, popped from the end
        self._free = [list(range(pool.num_blocks - 1, NULL_BLOCK, -1)) for pool in pools]
        self._groups = [(i, group) for i, pool in enumerate(pools) for group in pool.groups]
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._row_of: dict[int, int] = {}
        self._tables = [
            np.zeros((max_num_seqs, _table_width(placement, max_len)), np.int32)
            for _, placement in self._groups
        ]
        self._held = [np.zeros((max_num_seqs, 2), np.int64) for _ in self._groups]

    @property
    def num_free(self) -> tuple[int, ...]:
        """Free blocks of each pool."""
        return tuple(len(free) for free in self._free)

    @property
    def has_row(self) -> bool:
        """Whether one more request can hold blocks."""
        return bool(self._rows)

    def num_held(self, request_ids: Sequence[int]) -> Int64[np.ndarray, " num_pools"]:
        """Blocks of each pool that some requests hold together."""
        rows = [self._row_of[i] for i in request_ids]
        held = np.zeros(len(self.pools), np.int64)
        for (pool, _), bounds in zip(self._groups, self._held, strict=True):
            first, stop = bounds[rows].sum(0)
            held[pool] += stop - first
        return held

    def most_held(
        self, num_tokens: Int64[np.ndarray, " num_seqs"], chunk: Int64[np.ndarray, " num_seqs"]
    ) -> Int64[np.ndarray, "num_seqs num_pools"]:
        """Most blocks of each pool that requests hold at once on their way to some length.

        Args:
            num_tokens: The length of each.
            chunk: Most tokens of each that are computed at once.
        """
        most = np.zeros((len(num_tokens), len(self.pools)), np.int64)
        for pool, placement in self._groups:
            spec, size = placement.group.spec, placement.block_size
            blocks = -(-num_tokens // size) if spec.has_tokens else np.ones_like(num_tokens)
            if spec.has_tokens and spec.window is not None:
                blocks = np.minimum(blocks, spec.window_blocks(size, chunk))
            most[:, pool] += blocks
        return most

    def row(self, request_id: int) -> int:
        """Row of a request in every table."""
        return self._row_of[request_id]

    def tables(self, rows: Sequence[int]) -> list[Int32[np.ndarray, "num_seqs max_blocks"]]:
        """Block tables of some rows, one array a group, in logical blocks."""
        return [table[rows] for table in self._tables]

    def reserve(self, request_id: int, num_cached: int, num_tokens: int) -> bool:
        """Gives a request the blocks that it needs to grow from `num_cached` to `num_tokens`.

        Blocks before the window of the first new token are freed. Takes all blocks or none.

        Returns:
            Whether there were enough free blocks, and a free row for a new request.
        """
        if request_id not in self._row_of and not self._rows:
            return False
        row = self._row_of.get(request_id)
        plans, wanted = [], [0] * len(self.pools)
        for group, (pool, placement) in enumerate(self._groups):
            spec, size = placement.group.spec, placement.block_size
            held = (0, 0) if row is None else tuple(self._held[group][row].tolist())
            live = spec.live_blocks(num_tokens, size)
            # the first new token still reads the whole of its own window
            first = max(spec.live_blocks(max(num_cached, 1), size).start, held[0])
            plans.append((held, first, live.stop))
            freed = max(0, min(first, held[1]) - held[0])
            wanted[pool] += max(0, live.stop - max(held[1], first)) - freed
        if any(count > len(free) for count, free in zip(wanted, self._free, strict=True)):
            return False
        if row is None:
            row = self._row_of[request_id] = self._rows.pop()
        for group, (pool, _) in enumerate(self._groups):
            (old_first, old_stop), first, _ = plans[group]
            gone = self._tables[group][row, old_first : min(first, old_stop)]
            self._free[pool] += gone.tolist()
            gone[:] = NULL_BLOCK
        for group, (pool, _) in enumerate(self._groups):
            (_, old_stop), first, stop = plans[group]
            for i in range(max(old_stop, first), stop):
                self._tables[group][row, i] = self._free[pool].pop()
            self._held[group][row] = first, max(stop, old_stop)
        return True

    def held(self, request_id: int) -> list[tuple[int, Int32[np.ndarray, " _"]]]:
        """For each group, the first position of a request's table that has a block, and blocks."""
        row = self._row_of[request_id]
        return [
            (int(first), table[row, first:stop].copy())
            for table, (first, stop) in zip(
                self._tables, (held[row].tolist() for held in self._held), strict=True
            )
        ]

    def rename(self, request_id: int, new_id: int) -> None:
        """Gives all that a request holds to another one."""
        self._row_of[new_id] = self._row_of.pop(request_id)

    def release(self, request_id: int) -> list[list[int]]:
        """Takes all blocks of a request back.

        Returns:
            The freed blocks of each pool.
        """
        freed: list[list[int]] = [[] for _ in self.pools]
        row = self._row_of.pop(request_id, None)
        if row is None:
            return freed
        for group, (pool, _) in enumerate(self._groups):
            table = self._tables[group][row]
            freed[pool] += table[table != NULL_BLOCK].tolist()
            table[:] = NULL_BLOCK
            self._held[group][row] = 0
        for free, blocks in zip(self._free, freed, strict=True):
            free.extend(reversed(blocks))
        self._rows.append(row)
        return freed

    def check(self) -> None:
        """Raises `AssertionError` unless every block is free or owned exactly once."""
        for i, pool in enumerate(self.pools):
            owned = [
                self._tables[group][self._tables[group] != NULL_BLOCK]
                for group, (p, _) in enumerate(self._groups)
                if p == i
            ]
            blocks = np.sort(np.concatenate([*owned, np.array(self._free[i], np.int32)]))
            everything = np.arange(NULL_BLOCK + 1, pool.num_blocks)
            assert np.array_equal(blocks, everything), f"pool {i}: a block was lost or given twice"


def _table_width(placement: GroupPlacement, max_len: int) -> int:
    return placement.group.spec.live_blocks(max_len, placement.block_size).stop
