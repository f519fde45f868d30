"""Block manager: which request owns which blocks of which pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from blockstride.layouts import NULL_BLOCK, GroupPlacement, PoolLayout
from blockstride.models.engine.pool_blocks import Ids, PoolBlocks


class Copy(NamedTuple):
    """A block of one group that is copied into another, in all layers.

    Attributes:
        group: Which group.
        source: The block that is read.
        target: The one that is written.
    """

    group: int
    source: int
    target: int


class BlockManager:
    """Hands out blocks of the pools and keeps one block table a request and group.

    Tables are rows of one array a group; entries of blocks that a request no longer needs (out of
    an attention window) are the null block. Requests may share blocks of tokens that they begin
    with alike; each writes to blocks of its own only.

    Args:
        pools: The pools; their groups are numbered across all of them, in order.
        max_num_seqs: Requests that can hold blocks at once.
        max_len: Most tokens of a request.

    Attributes:
        groups: For each group, the index of its pool, and its placement.
        make_room: Called with how many blocks of each pool are wanted, when so many aren't free and
            some are kept; it gives back what it can.
        kept: Of each pool, the blocks that are kept, as often as they are; None: none are.
        on_freed: Called with blocks of each pool that were kept, and are free now.
    """

    make_room: Callable[[Sequence[int]], object] | None = None
    kept: Callable[[], list[list[np.ndarray]]] | None = None
    on_freed: Callable[[list[list[int]]], object] | None = None

    def __init__(self, pools: Sequence[PoolLayout], max_num_seqs: int, max_len: int) -> None:
        self.pools = tuple(pools)
        self._blocks = [PoolBlocks(pool.num_blocks) for pool in pools]
        self.groups = [(i, group) for i, pool in enumerate(pools) for group in pool.groups]
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._row_of: dict[int, int] = {}
        self._tables = [
            np.zeros((max_num_seqs, _table_width(placement, max_len)), np.int32)
            for _, placement in self.groups
        ]
        self._held = [np.zeros((max_num_seqs, 2), np.int64) for _ in self.groups]
        self._copies: dict[int, list[Copy]] = {}

    @property
    def num_free(self) -> tuple[int, ...]:
        """Blocks of each pool that no request needs; some are kept for later ones until then."""
        return tuple(blocks.num_free + blocks.num_idle for blocks in self._blocks)

    def lacking(self, wanted: Sequence[int]) -> list[int]:
        """The pools in which fewer blocks are neither used nor kept."""
        pairs = zip(wanted, self._blocks, strict=True)
        return [i for i, (count, blocks) in enumerate(pairs) if count > blocks.num_free]

    def _has_room(self, wanted: Sequence[int]) -> bool:
        """Whether so many blocks are free, or were kept and aren't any more."""
        if not self.lacking(wanted):
            return True
        if self.make_room is not None and (np.array(wanted) <= self.num_free).all():
            self.make_room(wanted)
        return not self.lacking(wanted)

    @property
    def has_row(self) -> bool:
        """Whether one more request can hold blocks."""
        return bool(self._rows)

    def num_held(self, request_ids: Sequence[int]) -> Int64[np.ndarray, " num_pools"]:
        """Blocks of each pool that some requests hold together."""
        rows = [self._row_of[i] for i in request_ids]
        held = np.zeros(len(self.pools), np.int64)
        for (pool, _), bounds in zip(self.groups, self._held, strict=True):
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
        for pool, placement in self.groups:
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
        for group, (pool, placement) in enumerate(self.groups):
            spec, size = placement.group.spec, placement.block_size
            held = (0, 0) if row is None else tuple(self._held[group][row].tolist())
            live = spec.live_blocks(num_tokens, size)
            # the first new token still reads the whole of its own window
            first = max(spec.live_blocks(max(num_cached, 1), size).start, held[0])
            plans.append((held, first, live.stop))
            wanted[pool] += max(0, live.stop - max(held[1], first))
            if row is not None and first > held[0]:
                passed = self._tables[group][row, held[0] : min(first, held[1])]
                wanted[pool] -= self._blocks[pool].num_freed_by_leaving(passed)
        if not self._has_room(wanted):
            return False
        if row is None:
            row = self._row_of[request_id] = self._rows.pop()
        for group, (pool, _) in enumerate(self.groups):
            (old_first, old_stop), first, _ = plans[group]
            gone = self._tables[group][row, old_first : min(first, old_stop)]
            self._blocks[pool].leave(gone)
            gone[:] = NULL_BLOCK
        for group, (pool, _) in enumerate(self.groups):
            (_, old_stop), first, stop = plans[group]
            new = slice(max(old_stop, first), stop)
            count = max(0, new.stop - new.start)
            self._tables[group][row, new] = self._blocks[pool].take(count)
            self._held[group][row] = first, max(stop, old_stop)
        return True

    def adopt(
        self,
        request_id: int,
        shared: Sequence[tuple[int, int, Ids]],
        copied: Sequence[tuple[int, int, int]],
    ) -> bool:
        """Gives a new request blocks that others have filled.

        Args:
            request_id: The request, which holds nothing yet.
            shared: A group, the first position of its table that has a block, and the blocks from
                there on, which the request only reads.
            copied: A group, a position of its table, and the block whose copy the request gets
                there; `copies` says what is to be copied until `on_copied` does.

        Returns:
            Whether there was a free row, and room for the copies; nothing is taken where not.
        """
        if not self._rows:
            return False
        lent = [(self.groups[group][0], ids) for group, _, ids in shared]
        lent += [(self.groups[group][0], [source]) for group, _, source in copied]
        for pool, ids in lent:
            self._blocks[pool].use(ids)
        wanted = [0] * len(self.pools)
        for group, _, _ in copied:
            wanted[self.groups[group][0]] += 1
        if not self._has_room(wanted):
            for pool, ids in lent:
                self._report(pool, self._blocks[pool].leave(ids))
            return False
        row = self._row_of[request_id] = self._rows.pop()
        for group, first, ids in shared:
            self._tables[group][row, first : first + len(ids)] = ids
            self._held[group][row] = first, first + len(ids)
        for group, position, source in copied:
            [target] = self._blocks[self.groups[group][0]].take(1)
            self._tables[group][row, position] = target
            self._held[group][row, 1] = position + 1
            self._copies.setdefault(request_id, []).append(Copy(group, source, target))
        return True

    def copies(self, request_id: int) -> Sequence[Copy]:
        """What is to be copied before a request is computed."""
        return self._copies.get(request_id, ())

    def on_copied(self, request_id: int) -> None:
        """The copies of a request are made."""
        for copy in self._copies.pop(request_id, ()):
            self.leave(copy.group, [copy.source])

    def new_copies(self, request_id: int, groups: Sequence[int]) -> list[Copy]:
        """Free blocks, of which there must be enough, for copies of a request's states.

        Args:
            request_id: The request.
            groups: Groups of states.
        """
        copies = []
        for group, source in zip(groups, self.states(request_id, groups), strict=True):
            [target] = self._blocks[self.groups[group][0]].take(1)
            copies.append(Copy(group, source, target))
        return copies

    def states(self, request_id: int, groups: Sequence[int]) -> list[int]:
        """The block of a request's state in each of some groups."""
        row = self._row_of[request_id]
        return [int(self._tables[group][row, 0]) for group in groups]

    def keep(self, group: int, blocks: Ids) -> None:
        """Keeps blocks of a group for later requests, beyond those that use them."""
        self._blocks[self.groups[group][0]].keep(blocks)

    def forget(self, group: int, blocks: Ids) -> None:
        """Keeps blocks of a group no longer."""
        pool = self.groups[group][0]
        self._report(pool, self._blocks[pool].forget(blocks))

    def leave(self, group: int, blocks: Ids) -> None:
        """Blocks of a group are no longer used by whoever got them beside a table."""
        pool = self.groups[group][0]
        self._report(pool, self._blocks[pool].leave(blocks))

    def _report(self, pool: int, freed: list[int]) -> None:
        if freed and self.on_freed is not None:
            self.on_freed([freed if i == pool else [] for i in range(len(self.pools))])

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
        self.on_copied(request_id)
        for group, (pool, _) in enumerate(self.groups):
            table = self._tables[group][row]
            freed[pool] += self._blocks[pool].leave(table)
            table[:] = NULL_BLOCK
            self._held[group][row] = 0
        self._rows.append(row)
        return freed

    def check(self) -> None:
        """Raises `AssertionError` unless every block is free or counted by all who need it."""
        kept = [[] for _ in self.pools] if self.kept is None else self.kept()
        for i, blocks in enumerate(self._blocks):
            used = [self._tables[g] for g, (pool, _) in enumerate(self.groups) if pool == i]
            sources = [
                copy.source
                for copies in self._copies.values()
                for copy in copies
                if self.groups[copy.group][0] == i
            ]
            named = [*(table.ravel() for table in used), np.array(sources, np.int64)]
            blocks.check(named, kept[i])


def _table_width(placement: GroupPlacement, max_len: int) -> int:
    return placement.group.spec.live_blocks(max_len, placement.block_size).stop
