"""What a cache is: logical axes, stride orders, typed pages, pools and binding."""

from blockstride.layouts.accounting import sequence_bytes, tokens_that_fit
from blockstride.layouts.attention_spec import (
    AttentionSpec,
    AttentionViews,
    full_attention,
    latent_attention,
    sliding_window_attention,
)
from blockstride.layouts.field import Axis, Field, Interval, Shard
from blockstride.layouts.groups import CacheGroup, PoolPolicy, choose_block_size, group_layers
from blockstride.layouts.kv_cache_layout import NAMED_LAYOUTS, KVCacheLayout
from blockstride.layouts.page import Page, Segment
from blockstride.layouts.placement import GroupPlacement, StridedField
from blockstride.layouts.pool import NULL_BLOCK, KVCachePool, PoolLayout
from blockstride.layouts.pool_planning import plan_pools
from blockstride.layouts.spec import CacheSpec
from blockstride.layouts.state_spec import (
    StateSpec,
    StateViews,
    gated_delta_net,
    mamba1,
    mamba2,
    rg_lru,
    short_conv,
)

__all__ = [
    "NAMED_LAYOUTS",
    "NULL_BLOCK",
    "AttentionSpec",
    "AttentionViews",
    "Axis",
    "CacheGroup",
    "CacheSpec",
    "Field",
    "GroupPlacement",
    "Interval",
    "KVCacheLayout",
    "KVCachePool",
    "Page",
    "PoolLayout",
    "PoolPolicy",
    "Segment",
    "Shard",
    "StateSpec",
    "StateViews",
    "StridedField",
    "choose_block_size",
    "full_attention",
    "gated_delta_net",
    "group_layers",
    "latent_attention",
    "mamba1",
    "mamba2",
    "plan_pools",
    "rg_lru",
    "sequence_bytes",
    "short_conv",
    "sliding_window_attention",
    "tokens_that_fit",
]
