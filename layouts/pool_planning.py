"""Planning of pools: which groups share one, and how many blocks each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockstride.checks import expect
from blockstride.layouts.accounting import largest, sequence_blocks
from blockstride.layouts.groups import group_layers
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from blockstride.layouts.pool import PoolLayout
from blockstride.layouts.spec import CacheSpec


def plan_pools(
    layers: Mapping[str, CacheSpec],
    *,
    layout: KVCacheLayout | str,
    policy: str,
    block_size: int,
    num_blocks: int | Sequence[int] | None = None,
    memory_bytes: int | None = None,
    kernel_block_size: int | None = None,
    num_seqs: int = 8,
    kept_states: int = 0,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> tuple[PoolLayout, ...]:
    """Lays out all that one rank caches: one pool under `unified`, one a group under `split`.

    The number of blocks is given, or follows from a budget. `unified` gives all of that to the one
    pool. `split` divides it for good: so that `num_seqs` sequences of the largest common length
    fit, and what is left goes to the pools that grow. States that are kept when their sequence goes
    on get blocks as well, for a quarter of the budget at most. Ranks of one engine get equally many
    blocks, as their parts have the same size.

    Args:
        layers: Layer name -> spec of the whole model, or of one rank where `tp_size` is 1.
        layout: Stride order of every pool, or its name.
        policy: `unified` or `split`.
        block_size: Tokens per block; see `choose_block_size`.
        num_blocks: Blocks of each pool, or one number for all, null blocks included.
        memory_bytes: Budget of this rank, which counts where `num_blocks` is None.
        kernel_block_size: Tokens per block that kernels see; None: a whole block.
        num_seqs: Sequences that a fixed division of the budget is made for.
        kept_states: States of a layer beyond those of sequences, in that division.
        tp_rank: The rank.
        tp_size: Tensor-parallel ranks.

    Raises:
        ValueError: Sizes that can't work together, not one number of blocks a pool, or a budget in
            which not one token of `num_seqs` sequences fits (under `unified`, of one); the message
            names the bytes that would do.
    """
    if (tp_rank, tp_size) != (0, 1):
        layers = {name: spec.tp_shard(tp_rank, tp_size) for name, spec in layers.items()}
    groups = group_layers(layers, policy)
    pools = tuple(
        PoolLayout.of(
            part,
            layout=KVCacheLayout.parse(layout),
            num_blocks=1,
            block_size=block_size,
            kernel_block_size=kernel_block_size,
        )
        for part in ([groups] if policy == "unified" else [(group,) for group in groups])
    )
    if num_blocks is None:
        counts = _blocks_of_budget(pools, policy, memory_bytes or 0, num_seqs, kept_states)
    else:
        counts = [num_blocks] * len(pools) if isinstance(num_blocks, int) else list(num_blocks)
    expect(len(counts) == len(pools), "num_blocks", f"{len(pools)} counts, one a pool", counts)
    return tuple(pool.with_blocks(count) for pool, count in zip(pools, counts, strict=True))


def _blocks_of_budget(
    pools: Sequence[PoolLayout], policy: str, memory_bytes: int, num_seqs: int, kept_states: int
) -> list[int]:
    """Blocks of each pool, null blocks included."""
    expect(num_seqs > 0, "num_seqs", "at least 1", num_seqs)
    expect(kept_states >= 0, "kept_states", "at least 0", kept_states)
    if policy == "unified":
        [pool] = pools
        _expect_enough(memory_bytes, (sequence_blocks(pool, 1) + 1) * pool.block_bytes)
        return [memory_bytes // pool.block_bytes]

    beyond = [1] * len(pools)

    def needed(num_tokens: int) -> list[int]:
        blocks = [num_seqs * sequence_blocks(pool, num_tokens) for pool in pools]
        return [count + more for count, more in zip(blocks, beyond, strict=True)]

    def nbytes(counts: Sequence[int]) -> int:
        return sum(n * pool.block_bytes for n, pool in zip(counts, pools, strict=True))

    least = nbytes(needed(1))
    _expect_enough(memory_bytes, least)
    states = [i for i, pool in enumerate(pools) if not pool.groups[0].group.spec.has_tokens]
    room = min(memory_bytes // 4, memory_bytes - least)
    state_bytes = sum(pools[i].block_bytes for i in states)
    for i in states:
        beyond[i] += min(kept_states, room // state_bytes)
    counts = needed(largest(lambda num_tokens: nbytes(needed(num_tokens)) <= memory_bytes))
    for i, pool in enumerate(pools):
        spec = pool.groups[0].group.spec
        if spec.has_tokens and spec.window is None:
            counts[i] += (memory_bytes - nbytes(counts)) // pool.block_bytes
    return counts


def _expect_enough(memory_bytes: int, least: int) -> None:
    wanted = f"at least {least:,} bytes ({-(-least // (1 << 20)):,} MiB)"
    expect(memory_bytes >= least, "memory_bytes", wanted, f"{memory_bytes:,}")
