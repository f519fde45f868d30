"""Triton kernels and their launchers, one file an operation. Importing this imports Triton."""

from blockstride.kernels.gpu.attention_schedule import attention_schedule
from blockstride.kernels.gpu.block_copy import block_copy
from blockstride.kernels.gpu.causal_conv1d import causal_conv1d
from blockstride.kernels.gpu.causal_conv1d_update import causal_conv1d_update
from blockstride.kernels.gpu.copy_runs import copy_runs
from blockstride.kernels.gpu.expert_mlp import expert_mlp
from blockstride.kernels.gpu.gated_delta_rule import gated_delta_rule
from blockstride.kernels.gpu.gated_delta_rule_update import gated_delta_rule_update
from blockstride.kernels.gpu.kv_cache_update import kv_cache_update
from blockstride.kernels.gpu.paged_attention import paged_attention
from blockstride.kernels.gpu.rms_norm import rms_norm
from blockstride.kernels.gpu.selective_scan import selective_scan
from blockstride.kernels.gpu.selective_state_update import selective_state_update
from blockstride.kernels.gpu.silu_and_mul import silu_and_mul
from blockstride.kernels.gpu.ssd_ring_update import fold_state_ring, ssd_ring_update
from blockstride.kernels.gpu.ssd_scan import ssd_scan
from blockstride.kernels.gpu.ssd_state_update import ssd_state_update
from blockstride.kernels.gpu.state_pages import copy_state, pack_state, unpack_state

__all__ = [
    "attention_schedule",
    "block_copy",
    "causal_conv1d",
    "causal_conv1d_update",
    "copy_runs",
    "copy_state",
    "expert_mlp",
    "fold_state_ring",
    "gated_delta_rule",
    "gated_delta_rule_update",
    "kv_cache_update",
    "pack_state",
    "paged_attention",
    "rms_norm",
    "selective_scan",
    "selective_state_update",
    "silu_and_mul",
    "ssd_ring_update",
    "ssd_scan",
    "ssd_state_update",
    "unpack_state",
]
