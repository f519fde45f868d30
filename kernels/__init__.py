"""What touches a cache: Triton kernels, and the same functions for CPUs.

Every function takes logical views and reads their strides; it never asks for the name of a layout.
Ids of blocks and states that are zero or negative are padding, neither read nor written.

Names are looked up when they are first asked for, so that programs can be compiled before torch is
imported, which takes seconds.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy

if TYPE_CHECKING:
    from blockstride.kernels.attention import AttentionSchedule, attention_schedule, paged_attention
    from blockstride.kernels.cache import (
        PAD_SLOT_ID,
        StateField,
        block_copy,
        copy_runs,
        copy_state,
        kv_cache_update,
        pack_state,
        unpack_state,
    )
    from blockstride.kernels.common.cpu.ahead import CompileAhead
    from blockstride.kernels.conv import causal_conv1d, causal_conv1d_update
    from blockstride.kernels.delta import gated_delta_rule, gated_delta_rule_update
    from blockstride.kernels.lru import rg_lru, rg_lru_update
    from blockstride.kernels.mamba1 import selective_scan, selective_state_update
    from blockstride.kernels.mamba2 import ssd_scan, ssd_state_update
    from blockstride.kernels.mlp import (
        GELU_TANH,
        SILU,
        Gate,
        PackedWeight,
        choose_experts,
        expert_mlp,
        gate_and_mul,
        linear,
        pack_experts,
        pack_weight,
    )
    from blockstride.kernels.norm import rms_norm

__all__ = [
    "GELU_TANH",
    "PAD_SLOT_ID",
    "SILU",
    "AttentionSchedule",
    "CompileAhead",
    "Gate",
    "PackedWeight",
    "StateField",
    "attention_schedule",
    "block_copy",
    "causal_conv1d",
    "causal_conv1d_update",
    "choose_experts",
    "copy_runs",
    "copy_state",
    "expert_mlp",
    "gate_and_mul",
    "gated_delta_rule",
    "gated_delta_rule_update",
    "kv_cache_update",
    "linear",
    "pack_experts",
    "pack_state",
    "pack_weight",
    "paged_attention",
    "rg_lru",
    "rg_lru_update",
    "rms_norm",
    "selective_scan",
    "selective_state_update",
    "ssd_scan",
    "ssd_state_update",
    "unpack_state",
]

__getattr__ = lazy(
    __name__,
    {
        "attention": (
            "AttentionSchedule",
            "attention_schedule",
            "paged_attention",
        ),
        "cache": (
            "PAD_SLOT_ID",
            "StateField",
            "block_copy",
            "copy_runs",
            "copy_state",
            "kv_cache_update",
            "pack_state",
            "unpack_state",
        ),
        "conv": (
            "causal_conv1d",
            "causal_conv1d_update",
        ),
        "delta": (
            "gated_delta_rule",
            "gated_delta_rule_update",
        ),
        "lru": (
            "rg_lru",
            "rg_lru_update",
        ),
        "mamba1": (
            "selective_scan",
            "selective_state_update",
        ),
        "mamba2": (
            "ssd_scan",
            "ssd_state_update",
        ),
        "mlp": (
            "GELU_TANH",
            "SILU",
            "Gate",
            "PackedWeight",
            "choose_experts",
            "expert_mlp",
            "gate_and_mul",
            "linear",
            "pack_experts",
            "pack_weight",
        ),
        "norm": ("rms_norm",),
        "common.cpu.ahead": ("CompileAhead",),
    },
)
