"""Accounting: what a sequence costs, what padding wastes, and how many tokens fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blockstride.checks import expect
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from blockstride.layouts.placement import GroupPlacement
from blockstride.layouts.pool import PoolLayout, plan_pools
from blockstride.layouts.spec import CacheSpec

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
    def waste(self) -> float:
        """Share of a block that holds nothing: padding of pages, and slots without a layer."""
        return 1 - self.used_bytes / self.block_bytes

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

    return _largest(fits)


def choose_num_blocks(
    layers: Mapping[str, CacheSpec],
    *,
    layout: KVCacheLayout,
    policy: str,
    block_size: int,
    memory_bytes: int,
    kernel_block_size: int | None = None,
    num_seqs: int = 8,
) -> tuple[int, ...]:
    """Blocks of each pool that a memory budget allows, null blocks included.

    `unified` gives all of it to the one pool. `split` divides it for good: so that `num_seqs`
    sequences of the largest common length fit, and what is left goes to the pools that grow.

    Args:
        layers: Layer name -> spec of this rank.
        layout: Stride order of every pool.
        policy: `unified` or `split`.
        block_size: Tokens per block.
        memory_bytes: Budget of this rank.
        kernel_block_size: Tokens per block that kernels see.
        num_seqs: Sequences that a fixed split is made for.

    Raises:
        ValueError: A budget in which not one token of `num_seqs` sequences fits; the message names
            the bytes that would do. Under `unified`, one sequence is enough.
    """
    expect(num_seqs > 0, "num_seqs", "at least 1", num_seqs)

    def pools(counts: int | Sequence[int]) -> tuple[PoolLayout, ...]:
        return plan_pools(
            layers,
            layout=layout,
            policy=policy,
            num_blocks=counts,
            block_size=block_size,
            kernel_block_size=kernel_block_size,
        )

    ones = pools(1)
    if policy == "unified":
        counts = (memory_bytes // ones[0].block_bytes,)
        _expect_enough(memory_bytes, (sequence_blocks(ones[0], 1) + 1) * ones[0].block_bytes)
        return counts

    def needed(num_tokens: int) -> list[int]:
        return [num_seqs * sequence_blocks(pool, num_tokens) + 1 for pool in ones]

    def nbytes(counts: Sequence[int]) -> int:
        return sum(n * pool.block_bytes for n, pool in zip(counts, ones, strict=True))

    _expect_enough(memory_bytes, nbytes(needed(1)))
    counts = needed(_largest(lambda num_tokens: nbytes(needed(num_tokens)) <= memory_bytes))
    for i, pool in enumerate(ones):
        spec = pool.groups[0].group.spec
        if spec.has_tokens and spec.window is None:
            counts[i] += (memory_bytes - nbytes(counts)) // pool.block_bytes
    return tuple(counts)


def _expect_enough(memory_bytes: int, least: int) -> None:
    wanted = f"at least {least:,} bytes ({-(-least // (1 << 20)):,} MiB)"
    expect(memory_bytes >= least, "memory_bytes", wanted, f"{memory_bytes:,}")


def _largest(fits: Callable[[int], bool]) -> int:
    """Largest number up to `MAX_TOKENS` for which `fits` holds; it holds for all smaller ones."""
    low, high = 0, MAX_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
