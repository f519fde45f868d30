"""The state side of a hybrid step: convolutions, recurrences, pages, norms."""

from typing import Any

import torch
from aot import meta

from blockstride.kernels import StateField
from blockstride.kernels.cache.gpu import copy_state, pack_state, unpack_state
from blockstride.kernels.conv.gpu import causal_conv1d, causal_conv1d_update
from blockstride.kernels.lru.gpu import rg_lru_update
from blockstride.kernels.mamba1.gpu import selective_state_update
from blockstride.kernels.mamba2.gpu import ssd_state_update
from blockstride.kernels.mlp.gpu import gate_and_mul
from blockstride.kernels.norm.gpu import rms_norm
from variants.variant import BF16, FP16, FP32, Variant, ids

NUM_SEQS, NUM_BLOCKS, DIM = 64, 4096, 8192


def conv_state(order: str, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Channels outer (DS) or taps outer (SD), in pages with a recurrent state beside it."""
    taps, page = width - 1, 32 * DIM
    strides = (page, taps, 1) if order == "DS" else (page, 1, DIM)
    return meta(NUM_BLOCKS * page, dtype=dtype).as_strided((NUM_BLOCKS, DIM, taps), strides)


def conv_update(
    name: str,
    order: str,
    *,
    num_new: int = 1,
    width: int = 4,
    dtype: torch.dtype = BF16,
    weight_order: str = "SD",
) -> Variant:
    """A step; the weights' taps are outer as well, but where told otherwise."""

    def call():
        x = meta(NUM_SEQS, num_new, 2 * DIM, dtype=dtype)[..., :DIM]
        state = conv_state(order, width, dtype)
        weight, bias = meta(width, DIM, dtype=dtype).T, meta(DIM, dtype=dtype)
        weight = meta(DIM, width, dtype=dtype) if weight_order == "DS" else weight
        causal_conv1d_update(x, weight, bias, state, ids(NUM_SEQS))

    channel_bytes = 2 * (width - 1 + num_new) * dtype.itemsize
    return Variant(name, call, moved=lambda meta: meta["BLOCK_D"] * channel_bytes)


def conv_prompt(
    name: str, order: str, *, num_tokens: int = 8192, width: int = 4, dtype: torch.dtype = BF16
) -> Variant:
    def call():
        x = meta(num_tokens, 2 * DIM, dtype=dtype)[:, :DIM]
        weight, bias = meta(width, DIM, dtype=dtype).T, meta(DIM, dtype=dtype)
        state = conv_state(order, width, dtype)
        fresh = meta(4, dtype=torch.bool)
        causal_conv1d(x, weight, bias, state, ids(4), ids(5), fresh)

    return Variant(name, call)


def state_update(
    name: str, *, d_state: int = 16, num_new: int = 0, state_dtype: torch.dtype = FP32
) -> Variant:
    """Mamba-1; `num_new` 0 leaves out the axis of new tokens."""
    tokens = (NUM_SEQS, num_new) if num_new else (NUM_SEQS,)

    def call():
        wide = meta(*tokens, 2 * DIM)
        B, C = meta(*tokens, 288).split([144, 144], dim=-1)
        selective_state_update(
            wide[..., :DIM], meta(*tokens, DIM), meta(DIM, d_state, dtype=FP32),
            B[..., :d_state], C[..., :d_state], meta(NUM_BLOCKS, DIM, d_state, dtype=state_dtype),
            ids(NUM_SEQS), D=meta(DIM, dtype=FP32), z=wide[..., DIM:],
            dt_bias=meta(DIM, dtype=FP32),
        )  # fmt: skip

    # states both ways; x, dt, z and the output
    channel_bytes = 2 * d_state * state_dtype.itemsize + 8
    moved = None if num_new else lambda meta: meta["BLOCK_M"] * channel_bytes
    return Variant(name, call, moved=moved)


def ssd_update(
    name: str, *, num_seqs: int = NUM_SEQS, num_new: int = 0, state_dtype: torch.dtype = FP32
) -> Variant:
    """Mamba-2 of 128 heads of 64 rows, 8 groups and 128 states."""
    tokens = (num_seqs, num_new) if num_new else (num_seqs,)

    def call():
        x, z = meta(*tokens, 2, 128, 64).unbind(-3)
        B, C = meta(*tokens, 2, 8, 128).unbind(-3)
        ssd_state_update(
            x, meta(*tokens, 128), meta(128, dtype=FP32), B, C,
            meta(NUM_BLOCKS, 128, 64, 128, dtype=state_dtype), ids(num_seqs),
            D=meta(128, dtype=FP32), z=z, dt_bias=meta(128, dtype=FP32),
        )  # fmt: skip

    return Variant(name, call)


def unit_update(
    name: str, *, num_new: int = 0, dtype: torch.dtype = BF16, draft: bool = False
) -> Variant:
    """RG-LRU of 4,096 channels; `num_new` 0 leaves out the axis of new tokens."""
    tokens, dim = (NUM_SEQS, num_new) if num_new else (NUM_SEQS,), 4096

    def call():
        x, recurrence_gate, input_gate, z = meta(*tokens, 4, dim, dtype=dtype).unbind(-2)
        bias = meta(dim, dtype=FP32)
        rg_lru_update(
            x, recurrence_gate, input_gate, bias, meta(NUM_BLOCKS, dim, dtype=FP32),
            ids(NUM_SEQS), recurrence_bias=bias, input_bias=bias, z=z,
            checkpoint_indices=ids(NUM_SEQS * num_new).view(NUM_SEQS, num_new) if draft else None,
        )  # fmt: skip

    # a state both ways; x, both gates, z and the output
    moved = None if num_new else lambda meta: meta["BLOCK_D"] * (8 + 5 * dtype.itemsize)
    return Variant(name, call, moved=moved)


CONV_DS = StateField(0, (DIM, 3), (3, 1), BF16)
CONV_SD = StateField(0, (DIM, 3), (1, DIM), BF16)
SSM = StateField(DIM * 6, (DIM, 16), (16, 1), FP32)


def pages(name: str, field: StateField, dtype: torch.dtype, *, packs: bool = False) -> Variant:
    def call():
        raw = meta(NUM_BLOCKS, 1, 1, DIM * 70, dtype=torch.int8)
        if packs:
            pack_state([meta(NUM_SEQS, *field.shape, dtype=dtype)], raw, ids(NUM_SEQS), [field])
        else:
            unpack_state(raw, ids(NUM_SEQS), [field], [dtype])

    def moved(meta: dict[str, Any]) -> int:
        # words of 4 bytes where neither order nor dtype changes
        size = sum(kind.itemsize for kind in (field.dtype, dtype))
        return meta["BLOCK_O"] * meta["BLOCK_I"] * (8 if meta["ALIGNMENT"] > 1 else size)

    return Variant(name, call, moved=moved)


def snapshot(name: str) -> Variant:
    def call():
        raw = meta(NUM_BLOCKS, 1, 1, DIM * 70, dtype=torch.int8)
        copy_state(raw, ids(NUM_SEQS), ids(NUM_SEQS))

    return Variant(name, call)


def norm(name: str, dim: int, *extras: str, norm_before_gate: bool = False) -> Variant:
    def call():
        x, weight = meta(NUM_SEQS, dim), meta(dim)
        others: dict[str, Any] = {key: meta(NUM_SEQS, dim) for key in extras}
        rms_norm(x, weight, 1e-6, norm_before_gate=norm_before_gate, **others)

    return Variant(name, call)


def swiglu(name: str, inner: int) -> Variant:
    return Variant(name, lambda: gate_and_mul(meta(NUM_SEQS, 2 * inner)))


def variants() -> list[Variant]:
    """A headline of each kernel, then one changed factor a variant."""
    return [
        conv_update("conv update", "SD"),
        conv_update("conv update DS", "DS"),
        conv_update("conv update of dense weights", "SD", weight_order="DS"),
        conv_update("conv update 4 new tokens", "SD", num_new=4),
        conv_update("conv update width 3", "SD", width=3),
        conv_update("conv update fp32", "SD", dtype=FP32),
        conv_prompt("conv prompt", "SD"),
        conv_prompt("conv prompt DS", "DS"),
        conv_prompt("conv prompt short", "SD", num_tokens=512),
        conv_prompt("conv prompt width 3", "SD", width=3),
        state_update("state update"),
        state_update("state update bf16", state_dtype=BF16),
        state_update("state update fp16", state_dtype=FP16),
        state_update("state update 4 new tokens", num_new=4),
        state_update("state update 128 states", d_state=128),
        ssd_update("ssd update"),
        ssd_update("ssd update bf16", state_dtype=BF16),
        ssd_update("ssd update 4 new tokens", num_new=4),
        ssd_update("ssd update of one sequence", num_seqs=1),
        unit_update("rg-lru update"),
        unit_update("rg-lru update fp32", dtype=FP32),
        unit_update("rg-lru update 4 new tokens", num_new=4),
        unit_update("rg-lru update of a draft", num_new=4, draft=True),
        pages("unpack state", SSM, FP32),
        pages("unpack state to bf16", SSM, BF16),
        pages("unpack conv", CONV_DS, BF16),
        pages("unpack conv from SD", CONV_SD, BF16),
        pages("pack state", SSM, FP32, packs=True),
        pages("pack state from bf16", SSM, BF16, packs=True),
        snapshot("copy state"),
        norm("rms norm", 4096),
        norm("rms norm residual", 4096, "residual"),
        norm("rms norm gate", 8192, "gate"),
        norm("rms norm before gate", 8192, "gate", norm_before_gate=True),
        norm("rms norm of 16", 16),
        swiglu("gate and mul", 14336),
    ]
