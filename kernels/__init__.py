"""What touches a cache: Triton kernels, and the same functions for CPUs.

Every function takes logical views and reads their strides; it never asks for the name of a layout.
Ids of blocks and states that are zero or negative are padding, neither read nor written.
"""

from blockstride.kernels.attention_schedule import AttentionSchedule, attention_schedule
from blockstride.kernels.block_copy import block_copy
from blockstride.kernels.causal_conv1d import causal_conv1d, causal_conv1d_update
from blockstride.kernels.copy_runs import copy_runs
from blockstride.kernels.expert_mlp import PackedExperts, expert_mlp, pack_experts
from blockstride.kernels.gated_delta_rule import gated_delta_rule, gated_delta_rule_update
from blockstride.kernels.kv_cache_update import PAD_SLOT_ID, kv_cache_update
from blockstride.kernels.linear import linear, pack_weight
from blockstride.kernels.paged_attention import paged_attention
from blockstride.kernels.rms_norm import rms_norm
from blockstride.kernels.selective_scan import selective_scan
from blockstride.kernels.selective_state_update import selective_state_update
from blockstride.kernels.silu_and_mul import silu_and_mul
from blockstride.kernels.ssd_ring_update import fold_state_ring, ssd_ring_update
from blockstride.kernels.ssd_scan import ssd_scan
from blockstride.kernels.ssd_state_update import ssd_state_update
from blockstride.kernels.state_field import StateField
from blockstride.kernels.state_pages import copy_state, pack_state, unpack_state
from blockstride.kernels.state_ring import StateRing

__all__ = [
    "PAD_SLOT_ID",
    "AttentionSchedule",
    "PackedExperts",
    "StateField",
    "StateRing",
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
    "linear",
    "pack_experts",
    "pack_state",
    "pack_weight",
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
