"""The pools of an engine's rank."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from blockstride.layouts import (
    CacheSpec,
    KVCachePool,
    PoolLayout,
    choose_block_size,
    plan_pools,
)
from blockstride.layouts.poison import poison_pool
from blockstride.models.engine.config import EngineConfig
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.memory import expect_room
from blockstride.models.parallel import TensorParallel

STATES_A_REQUEST = 3
"""States that are kept for later requests, for each that runs: where it parted from an earlier one,
after its prompt, after its answer."""

logger = logging.getLogger(__name__)


def states_to_keep(num_seqs: int, prefix_caching: bool) -> int:
    """States of a layer that an engine makes room for beyond those of requests that run."""
    return STATES_A_REQUEST * num_seqs if prefix_caching else 0


def plan_model_pools(
    specs: Mapping[str, CacheSpec],
    config: EngineConfig,
    parallel: TensorParallel,
    kept_states: int | None = None,
) -> tuple[PoolLayout, ...]:
    """Where one rank of a model caches what.

    Args:
        specs: The caches of the whole model.
        config: Its engine.
        parallel: The rank.
        kept_states: States that there is room for beyond those of requests that run; None: as many
            as `states_to_keep` says.

    Raises:
        ValueError: Sizes that can't work together; the message names one.
    """
    if kept_states is None:
        kept_states = states_to_keep(config.max_num_seqs, config.prefix_caching)
    try:
        return plan_pools(
            specs,
            layout=config.layout,
            policy=config.policy,
            block_size=choose_block_size(specs, config.policy, config.block_size),
            memory_bytes=config.cache_bytes,
            num_blocks=config.num_blocks,
            kernel_block_size=config.kernel_block_size,
            num_seqs=config.max_num_seqs,
            kept_states=kept_states,
            tp_rank=parallel.rank,
            tp_size=parallel.size,
        )
    except ValueError as error:
        # it is a field of the config here
        raise ValueError(str(error).replace("memory_bytes:", "cache_bytes:")) from error


def make_pools(model: HybridModel, config: EngineConfig) -> tuple[KVCachePool, ...]:
    """Memory for what a model, or one rank of it, caches.

    Raises:
        ValueError: Sizes that can't work together, or more memory than there is; the message names
            one.
    """
    plans = plan_model_pools(model.cache_specs(), config, model.parallel)
    expect_room(memory_argument(config), sum(plan.nbytes for plan in plans), model.device)
    for plan in plans:
        logger.info(
            "a pool of %d blocks of %d bytes, %s", plan.num_blocks, plan.block_bytes, plan.layout
        )
    pools = tuple(KVCachePool(plan, model.device) for plan in plans)
    if config.poison:
        for pool in pools:
            poison_pool(pool)
    return pools


def memory_argument(config: EngineConfig) -> str:
    """What decides how large the pools are."""
    return "cache_bytes" if config.num_blocks is None else "num_blocks"
