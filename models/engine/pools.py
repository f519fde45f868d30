"""The pools of an engine's rank."""

from __future__ import annotations

from blockstride.layouts import KVCachePool
from blockstride.layouts.poison import poison_pool
from blockstride.layouts.rank_pools import plan_rank_pools
from blockstride.models.engine.config import EngineConfig
from blockstride.models.hybrid_model import HybridModel


def make_pools(model: HybridModel, config: EngineConfig) -> tuple[KVCachePool, ...]:
    """Memory for what a model, or one rank of it, caches.

    Raises:
        ValueError: Sizes that can't work together; the message names one.
    """
    plans = plan_rank_pools(
        model.cache_specs(),
        layout=config.layout,
        policy=config.policy,
        block_size=config.block_size,
        memory_bytes=config.cache_bytes,
        num_blocks=config.num_blocks,
        kernel_block_size=config.kernel_block_size,
        num_seqs=config.max_num_seqs,
        tp_rank=model.parallel.rank,
        tp_size=model.parallel.size,
    )
    pools = tuple(KVCachePool(plan, model.device) for plan in plans)
    if config.poison:
        for pool in pools:
            poison_pool(pool)
    return pools
