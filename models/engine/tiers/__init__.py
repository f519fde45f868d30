"""Tiers: where prefixes go that a pool has no room for, and where they come back from.

A pool is evicted to host memory, of which each rank has a part, and that is written to files beside
compute. `RankTiers` moves bytes on every rank; `EngineTiers` keeps the books on rank 0. Names are
looked up when they are asked for: most engines have no tiers.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy

if TYPE_CHECKING:
    from blockstride.models.engine.tiers.making import EngineTiers
    from blockstride.models.engine.tiers.rank_tiers import RankTiers, plan_host_pools
    from blockstride.models.engine.tiers.tiers import Tiers

__all__ = ["EngineTiers", "RankTiers", "Tiers", "plan_host_pools"]

__getattr__ = lazy(
    __name__,
    {
        "making": ("EngineTiers",),
        "rank_tiers": ("RankTiers", "plan_host_pools"),
        "tiers": ("Tiers",),
    },
)
