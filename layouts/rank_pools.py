"""The pools of one rank: the block size of the whole model, the blocks that its memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockstride.layouts.accounting import choose_num_blocks
from blockstride.layouts.groups import choose_block_size
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from blockstride.layouts.pool import PoolLayout, plan_pools
from blockstride.layouts.spec import CacheSpec


def plan_rank_pools(
    layers: Mapping[str, CacheSpec],
    *,
    layout: str,
    policy: str,
    block_size: int,
    memory_bytes: int,
    num_blocks: int | Sequence[int] | None = None,
    kernel_block_size: int | None = None,
    num_seqs: int = 8,
    tp_rank: int = 0,
    tp_size: int = 1,
) -> tuple[PoolLayout, ...]:
    """Lays out all that one rank caches.

    Ranks of one engine get equally many blocks, as their parts have the same size.

    Args:
        layers: Layer name -> spec of the whole model.
        layout: Name of a stride order.
        policy: `unified` or `split`.
        block_size: Tokens per block that kernels want; `unified` inflates it.
        memory_bytes: Budget of this rank, unless `num_blocks` is given.
        num_blocks: Blocks of each pool, null blocks included.
        kernel_block_size: Tokens per block that kernels see; None: a whole block.
        num_seqs: Sequences that a fixed split of the memory is made for.
        tp_rank: The rank.
        tp_size: Tensor-parallel ranks.

    Raises:
        ValueError: Sizes that can't work together, or a budget that is too small.
    """
    order = KVCacheLayout.parse(layout)
    tokens = choose_block_size(layers, policy, block_size)
    parts = {name: spec.tp_shard(tp_rank, tp_size) for name, spec in layers.items()}
    if num_blocks is None:
        num_blocks = choose_num_blocks(
            parts,
            layout=order,
            policy=policy,
            block_size=tokens,
            memory_bytes=memory_bytes,
            kernel_block_size=kernel_block_size,
            num_seqs=num_seqs,
        )
    return plan_pools(
        parts,
        layout=order,
        policy=policy,
        num_blocks=num_blocks,
        block_size=tokens,
        kernel_block_size=kernel_block_size,
    )
