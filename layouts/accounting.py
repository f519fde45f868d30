"""Accounting: what a sequence costs in pools, what padding wastes, and how many tokens fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockstride.checks import expect
from blockstride.layouts.placement import GroupPlacement
from blockstride.layouts.pool import PoolLayout

MAX_TOKENS = 1 << 40
"""Stands for "any number": a pool of states alone bounds sequences, never tokens."""


@dataclass(frozen=True)
class GroupAccount:
    """What one group of layers costs in its pool.

    Attributes:
        placement: The group.
        block_bytes: Bytes of a block over all slots of the pool, as allocated.
        used_bytes: Those that fields of this group fill.
    """

    placement: GroupPlacement
    block_bytes: int
    used_bytes: int

    @property
    def token_bytes(self) -> float:
        """Allocated bytes that one more token costs, padding included; 0 for states."""
        if not self.placement.group.spec.has_tokens:
            return 0.0
        return self.block_bytes / self.placement.block_size

    @property
    def state_bytes(self) -> int:
        """Allocated bytes that a sequence costs whatever its length; 0 for attention."""
        return 0 if self.placement.group.spec.has_tokens else self.block_bytes


def account(pool: PoolLayout) -> tuple[GroupAccount, ...]:
    """The cost of each group of a pool."""
    accounts = []
    for placement in pool.groups:
        page = sum(field.nbytes for field in placement.page.fields)
        used = len(placement.group.layer_names) * placement.kernel_blocks * page
        accounts.append(GroupAccount(placement, pool.block_bytes, used))
    return tuple(accounts)


def sequence_blocks(pool: PoolLayout, num_tokens: int) -> int:
    """Most blocks of a pool that a sequence keeps, over all groups, on its way to `num_tokens`."""
    return sum(
        placement.group.spec.peak_blocks(num_tokens, placement.block_size)
        for placement in pool.groups
    )


def sequence_bytes(pools: Sequence[PoolLayout], num_tokens: int) -> int:
    """Allocated bytes that a sequence of `num_tokens` needs; see `sequence_blocks`."""
    return sum(sequence_blocks(pool, num_tokens) * pool.block_bytes for pool in pools)


def tokens_that_fit(pools: Sequence[PoolLayout], num_seqs: int = 1) -> int:
    """Largest length at which `num_seqs` sequences fit together; 0 when not even one token does.

    `MAX_TOKENS` when nothing grows with the length.
    """
    expect(num_seqs > 0, "num_seqs", "at least 1", num_seqs)

    def fits(num_tokens: int) -> bool:
        return all(num_seqs * sequence_blocks(pool, num_tokens) < pool.num_blocks for pool in pools)

    return largest(fits)


def largest(fits: Callable[[int], bool]) -> int:
    """Largest number up to `MAX_TOKENS` for which `fits` holds; it holds for all smaller ones."""
    low, high = 0, MAX_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
