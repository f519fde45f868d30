"""Scans over prompts and mixtures of experts: launchers on tensors without memory."""

from typing import Any

import torch
from aot import meta

from blockstride.kernels.delta.gpu import gated_delta_rule, gated_delta_rule_update
from blockstride.kernels.lru.gpu import rg_lru
from blockstride.kernels.mamba1.gpu import selective_scan
from blockstride.kernels.mamba2.gpu import ssd_scan
from blockstride.kernels.mlp.gpu import expert_mlp
from variants.variant import BF16, FP32, Variant, ids


def prompts(num_seqs: int, checkpoints: bool) -> dict[str, Any]:
    """What all scans ask of a batch."""
    kept = ids(8) if checkpoints else None
    return {
        "state_indices": ids(num_seqs),
        "query_start_loc": ids(num_seqs + 1),
        "has_initial_state": meta(num_seqs, dtype=torch.bool),
        "checkpoint_tokens": kept,
        "checkpoint_indices": kept,
    }


def mamba1(
    name: str,
    dim: int = 8192,
    d_state: int = 16,
    dtype: torch.dtype = BF16,
    checkpoints: bool = False,
) -> Variant:
    """A step of 4,096 tokens; with 1,024 channels a sequence is cut into chunks."""

    def call():
        rows = meta(4096, 2 * dim, dtype=dtype)
        parameters = meta(dim, dtype=FP32)
        selective_scan(
            rows[:, :dim], meta(4096, dim, dtype=dtype), meta(dim, d_state, dtype=FP32),
            meta(4096, d_state, dtype=dtype), meta(4096, d_state, dtype=dtype),
            meta(512, dim, d_state, dtype=FP32), **prompts(1, checkpoints),
            D=parameters, z=rows[:, dim:], dt_bias=parameters,
        )  # fmt: skip

    return Variant(name, call)


def mamba2(
    name: str,
    head_dim: int = 64,
    d_state: int = 128,
    dtype: torch.dtype = BF16,
    checkpoints: bool = False,
) -> Variant:
    """A step of 4,096 tokens in two sequences, 128 heads in 8 groups."""

    def call():
        x, projections = meta(4096, 128, head_dim, dtype=dtype), meta(4096, 8, d_state, dtype=dtype)
        parameters = meta(128, dtype=FP32)
        ssd_scan(
            x, meta(4096, 128, dtype=dtype), parameters, projections, projections,
            meta(512, 128, head_dim, d_state, dtype=FP32), **prompts(2, checkpoints),
            D=parameters, z=x, dt_bias=parameters,
        )  # fmt: skip

    return Variant(name, call)


def delta(
    name: str, dtype: torch.dtype = BF16, checkpoints: bool = False, by_channel: bool = False
) -> Variant:
    """4,096 tokens in two sequences; 16 heads and 32 value heads, or 32 with gates of channels."""

    def call():
        inputs = delta_inputs(4096, dtype=dtype, by_channel=by_channel)
        gated_delta_rule(**inputs, **prompts(2, checkpoints))

    return Variant(name, call)


def unit(
    name: str, num_seqs: int = 1, dtype: torch.dtype = BF16, checkpoints: bool = False
) -> Variant:
    """RG-LRU of 4,096 channels over 4,096 tokens; one sequence is cut into chunks."""

    def call():
        x, recurrence_gate, input_gate, z = meta(4096, 4, 4096, dtype=dtype).unbind(1)
        bias = meta(4096, dtype=FP32)
        rg_lru(
            x, recurrence_gate, input_gate, bias, meta(512, 4096, dtype=FP32),
            **prompts(num_seqs, checkpoints), recurrence_bias=bias, input_bias=bias, z=z,
        )  # fmt: skip

    return Variant(name, call)


def delta_update(
    name: str, num_new: int = 0, by_channel: bool = False, kept: bool = False
) -> Variant:
    """A step of 64 sequences; `num_new` 0 leaves out the axis of new tokens."""
    tokens = (64, num_new) if num_new else (64,)

    def call():
        inputs = delta_inputs(*tokens, dtype=BF16, by_channel=by_channel)
        places = ids(64 * num_new).view(64, num_new) if kept else None
        gated_delta_rule_update(**inputs, state_indices=ids(64), checkpoint_indices=places)

    return Variant(name, call)


def delta_inputs(*tokens: int, dtype: torch.dtype, by_channel: bool) -> dict[str, Any]:
    """Keys and values of 128, with the states of both."""
    keys = meta(*tokens, 32 if by_channel else 16, 128, dtype=dtype)
    gates = meta(*tokens, 32, dtype=FP32)
    return {
        "q": keys,
        "k": keys,
        "v": meta(*tokens, 32, 128, dtype=dtype),
        "g": meta(*tokens, 32, 128, dtype=FP32) if by_channel else gates,
        "beta": gates,
        "ssm_state": meta(512, 32, 128, 128, dtype=FP32),
        "scale": 0.1,
        "qk_l2norm": True,
    }


def experts(name: str, num_tokens: int, dtype: torch.dtype = BF16) -> Variant:
    """16 experts of Jamba's size, two of which a token chooses."""

    def call():
        hidden, inner = 4096, 14336
        expert_mlp(
            meta(num_tokens, hidden, dtype=dtype), meta(16, 2 * inner, hidden, dtype=dtype),
            meta(16, hidden, inner, dtype=dtype), ids(num_tokens)[:, None].expand(-1, 2),
            meta(num_tokens, 2, dtype=dtype),
        )  # fmt: skip

    return Variant(name, call)


def variants() -> list[Variant]:
    """A headline of each kernel, then one changed factor a variant."""
    return [
        mamba1("scan"),
        mamba1("scan in chunks with checkpoints", dim=1024, checkpoints=True),
        mamba1("scan fp32", dtype=FP32),
        mamba1("scan of 128 states", d_state=128),
        mamba2("ssd scan with checkpoints", checkpoints=True),
        mamba2("ssd scan, heads of 128, 64 states", head_dim=128, d_state=64),
        mamba2("ssd scan fp32", dtype=FP32),
        delta("delta rule"),
        delta("delta rule with checkpoints", checkpoints=True),
        delta("delta rule fp32", FP32),
        unit("rg-lru in chunks with checkpoints", checkpoints=True),
        unit("rg-lru", num_seqs=16),
        unit("rg-lru fp32", dtype=FP32),
        delta("delta rule by channel", by_channel=True),
        delta("delta rule by channel with checkpoints", checkpoints=True, by_channel=True),
        delta("delta rule by channel fp32", FP32, by_channel=True),
        delta_update("delta rule update"),
        delta_update("delta rule update by channel", by_channel=True),
        delta_update("delta rule update 4 new tokens", num_new=4),
        delta_update("delta rule update 4 states", num_new=4, by_channel=True, kept=True),
        experts("experts, 1 token", 1),
        experts("experts, 512 tokens", 512),
        experts("experts, 4096 tokens", 4096),
    ]
