"""Triton kernels and their launchers, one file an operation. Importing this imports Triton."""

from blockstride.kernels.gpu.attention_schedule import AttentionSchedule, attention_schedule
from blockstride.kernels.gpu.block_copy import block_copy
from blockstride.kernels.gpu.kv_cache_update import kv_cache_update
from blockstride.kernels.gpu.paged_attention import paged_attention

__all__ = [
    "AttentionSchedule",
    "attention_schedule",
    "block_copy",
    "kv_cache_update",
    "paged_attention",
]
