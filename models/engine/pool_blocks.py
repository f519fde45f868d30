"""Blocks of one pool: free, used by requests, or kept for requests to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int32

from blockstride.layouts import NULL_BLOCK

Ids = Sequence[int] | Int32[np.ndarray, " num_blocks"]


class PoolBlocks:
    """Counts who needs each block; a block is free when nobody does.

    A request uses the blocks of its table, and those that are about to be copied for it. Kept
    blocks hold the caches of tokens that a later request may begin with. Several requests may use a
    block, which may be kept as well; the null block counts for nothing.

    Args:
        num_blocks: Blocks of the pool, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # lowest ids first, popped from the end
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self.users = np.zeros(num_blocks, np.int32)
        self.keeps = np.zeros(num_blocks, np.int32)
        self._num_idle = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be taken at once."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that are kept and that no request uses."""
        return self._num_idle

    def take(self, count: int) -> list[int]:
        """Free blocks for one request; there must be so many."""
        taken = [self._free.pop() for _ in range(count)]
        self.users[taken] = 1
        return taken

    def use(self, blocks: Ids) -> None:
        """One more request uses some blocks, each of which is named once and kept or used."""
        ids = _real(blocks)
        self._num_idle -= int((self.users[ids] == 0).sum())
        self.users[ids] += 1

    def leave(self, blocks: Ids) -> list[int]:
        """A request no longer uses some blocks, each of which is named once; returns the freed."""
        ids = _real(blocks)
        self.users[ids] -= 1
        unused = self.users[ids] == 0
        self._num_idle += int((unused & (self.keeps[ids] > 0)).sum())
        return self._give_back(ids[unused & (self.keeps[ids] == 0)])

    def num_freed_by_leaving(self, blocks: Ids) -> int:
        """How many blocks would be free if one request left them."""
        ids = _real(blocks)
        return int(((self.users[ids] == 1) & (self.keeps[ids] == 0)).sum())

    def keep(self, blocks: Ids) -> None:
        """Keeps some blocks that are used or kept, each of which is named once."""
        ids = _real(blocks)
        self.keeps[ids] += 1

    def forget(self, blocks: Ids) -> list[int]:
        """Keeps some blocks once less, each of which is named once; returns the freed."""
        ids = _real(blocks)
        self.keeps[ids] -= 1
        idle = (self.keeps[ids] == 0) & (self.users[ids] == 0)
        self._num_idle -= int(idle.sum())
        return self._give_back(ids[idle])

    def _give_back(self, ids: np.ndarray) -> list[int]:
        freed = ids.tolist()
        self._free.extend(reversed(freed))
        return freed

    def check(self, used: Iterable[np.ndarray], kept: Iterable[np.ndarray]) -> None:
        """Raises `AssertionError` unless counts are those of all uses and keeps, and add up."""
        for counts, named in ((self.users, used), (self.keeps, kept)):
            ids = np.concatenate([np.zeros(0, np.int64), *named])
            found = np.bincount(ids[ids > NULL_BLOCK], minlength=self.num_blocks)
            assert np.array_equal(counts, found), "a block is counted that nobody names, or not"
        needed = (self.users > 0) | (self.keeps > 0)
        free = np.sort(np.array(self._free, np.int64))
        assert np.array_equal(free, np.flatnonzero(~needed)[1:]), "a block was lost, or is free"
        assert self._num_idle == int(((self.users == 0) & (self.keeps > 0)).sum())


def _real(blocks: Ids) -> np.ndarray:
    ids = np.asarray(blocks, np.int64)
    return ids[ids > NULL_BLOCK]
