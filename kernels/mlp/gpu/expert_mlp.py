"""A mixture of experts as two grouped products, over rows sorted by expert.

The first product's program has up to 128 rows of one expert and some columns of both its gate and
its up projection, so the gated product of the two needs no pass of its own. The second one's has
the same rows and some columns of the down projection. Programs that share columns of an expert
follow each other, so a matrix comes from memory once. Bytes: every matrix that was chosen, once; of
each pair its inner activations written and read, and its float32 output written and read.

Source of the idea: Gale et al., "MegaBlocks", for grouped products without padding; vLLM's fused
mixture of experts for sorting on the device.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import widened
from blockstride.kernels.common.gpu.launching import (
    backend_of,
    dot_precision,
    index_dtype,
    next_power_of_2,
    strides_of,
)
from blockstride.kernels.common.gpu.sequence_chunks import num_slots
from blockstride.kernels.mlp.gate import SILU, Gate
from blockstride.kernels.mlp.gpu.expert_rows import find_rows, sort_pairs_kernel, sum_choices_kernel
from blockstride.kernels.mlp.gpu.gate_and_mul import gated

# two sizes, not one for each power of two: a step of a new size should find its kernel compiled
SHORT_SORT, SORT_BLOCK, SUM_BLOCK = 256, 4096, 1024


class Tile(NamedTuple):
    """Rows of a program, columns of each of the two products, depth of a step, warps, stages."""

    rows: int
    columns: int
    down_columns: int
    depth: int
    num_warps: int
    num_stages: int


def choose_tile(num_pairs: int, num_experts: int, x: Tensor) -> Tile:
    """The shape of a program's work, by the rows that an expert has on average."""
    average = num_pairs / num_experts
    on_hip = backend_of(x.device) == "hip"
    if average <= 16:
        # bound by the matrices: many narrow programs with deep queues
        tile = Tile(16, 64, 32, 128, 4, 4)
    elif average <= 96 or on_hip:
        tile = Tile(64, 64, 128, 64, 4, 3)
    else:
        tile = Tile(128, 64, 128, 64, 8, 3)
    if x.dtype == torch.float32:
        tile = tile._replace(rows=min(tile.rows, 64), depth=32, down_columns=64, num_stages=2)
    return tile._replace(num_stages=2) if on_hip else tile


@triton.jit
def load_tile(rows, columns, mask_rows, offs_k, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """A tile of rows by depth; zeros for rows and depth that are not there."""
    if SIZE % BLOCK_K == 0:
        tile = tl.load(rows[:, None] + columns[None, :], mask=mask_rows[:, None], other=0.0)
    else:
        mask = mask_rows[:, None] & (offs_k < SIZE)[None, :]
        tile = tl.load(rows[:, None] + columns[None, :], mask=mask, other=0.0)
    return tile


@triton.jit
def up_kernel(
    x_ptr, up_ptr, up_bias_ptr, expert_ids_ptr, order_ptr, starts_ptr, inner_ptr,
    # sizes
    num_experts,
    # strides, in elements
    stride_x_token, stride_x_dim,
    stride_up_expert, stride_up_row, stride_up_column,
    stride_up_bias_expert, stride_up_bias_row,
    stride_ids_token, stride_ids_choice,
    # meta-parameters
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, BY_PAIR: tl.constexpr,
    IS_GATED: tl.constexpr, SLOPE: tl.constexpr, CUBIC: tl.constexpr, LIMIT: tl.constexpr,
    OFFSET: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Some rows of one expert, some columns of its inner activations, in the order of the pairs."""
    expert, begin, end = find_rows(
        expert_ids_ptr, order_ptr, starts_ptr, tl.program_id(0), num_experts,
        stride_ids_token, stride_ids_choice, TOP_K, BY_PAIR, BLOCK_M,
    )  # fmt: skip
    if begin >= end:
        return
    places = begin + tl.arange(0, BLOCK_M)
    mask_m = places < end
    token = (tl.load(order_ptr + places, mask=mask_m, other=0) // TOP_K).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < INNER
    x_rows = x_ptr + token * stride_x_token
    matrix_ptr = up_ptr + tl.cast(expert, tl.int64) * stride_up_expert
    gate_rows = matrix_ptr + offs_n.to(tl.int64) * stride_up_row
    # the up projection stands behind the gate, if there is one; from the gate's rows it would be
    # some registers further
    up_columns = offs_n.to(tl.int64) + (INNER if IS_GATED else 0)
    up_rows = matrix_ptr + up_columns * stride_up_row

    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, HIDDEN, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        columns = offs_k.to(INDEX) * stride_up_column
        x = load_tile(x_rows, offs_k.to(INDEX) * stride_x_dim, mask_m, offs_k, HIDDEN, BLOCK_K)
        if IS_GATED:
            gate_tile = load_tile(gate_rows, columns, mask_n, offs_k, HIDDEN, BLOCK_K)
        up_tile = load_tile(up_rows, columns, mask_n, offs_k, HIDDEN, BLOCK_K)
        if IS_GATED:
            gate = tl.dot(x, gate_tile.T, gate, input_precision=PRECISION)
        up = tl.dot(x, up_tile.T, up, input_precision=PRECISION)
    bias_ptr = up_bias_ptr
    if up_bias_ptr is not None:
        bias_ptr += tl.cast(expert, tl.int64) * stride_up_bias_expert
        bias_ptr += offs_n.to(tl.int64) * stride_up_bias_row
        if IS_GATED:
            gate += widened(tl.load(bias_ptr, mask=mask_n, other=0.0))[None, :]
            bias_ptr += INNER * stride_up_bias_row
        up += widened(tl.load(bias_ptr, mask=mask_n, other=0.0))[None, :]
    if IS_GATED:
        inner = gated(gate, up, SLOPE, CUBIC, LIMIT, OFFSET)
    else:
        up = tl.where(up < 0.0, 0.0, up)
        inner = up * up
    inner = inner.to(inner_ptr.dtype.element_ty)
    inner_rows = inner_ptr + places.to(tl.int64) * INNER
    tl.store(inner_rows[:, None] + offs_n[None, :], inner, mask=mask_m[:, None] & mask_n[None, :])


@triton.jit
def down_kernel(
    inner_ptr, down_ptr, down_bias_ptr, expert_ids_ptr, order_ptr, starts_ptr, outputs_ptr,
    # sizes
    num_experts,
    # strides, in elements
    stride_down_expert, stride_down_row, stride_down_column,
    stride_down_bias_expert, stride_down_bias_row,
    stride_ids_token, stride_ids_choice,
    # meta-parameters
    HIDDEN: tl.constexpr, INNER: tl.constexpr, TOP_K: tl.constexpr, BY_PAIR: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Some rows of one expert, some columns of its output, each where its pair stands."""
    expert, begin, end = find_rows(
        expert_ids_ptr, order_ptr, starts_ptr, tl.program_id(0), num_experts,
        stride_ids_token, stride_ids_choice, TOP_K, BY_PAIR, BLOCK_M,
    )  # fmt: skip
    if begin >= end:
        return
    places = begin + tl.arange(0, BLOCK_M)
    mask_m = places < end
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < HIDDEN
    inner_rows = inner_ptr + places.to(tl.int64) * INNER
    down_rows = down_ptr + tl.cast(expert, tl.int64) * stride_down_expert
    down_rows += offs_n.to(tl.int64) * stride_down_row

    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, INNER, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        inner = load_tile(inner_rows, offs_k, mask_m, offs_k, INNER, BLOCK_K)
        columns = offs_k.to(INDEX) * stride_down_column
        tile = load_tile(down_rows, columns, mask_n, offs_k, INNER, BLOCK_K)
        acc = tl.dot(inner, tile.T, acc, input_precision=PRECISION)
    bias_ptr = down_bias_ptr
    if down_bias_ptr is not None:
        bias_ptr += tl.cast(expert, tl.int64) * stride_down_bias_expert
        bias_ptr += offs_n.to(tl.int64) * stride_down_bias_row
        acc += widened(tl.load(bias_ptr, mask=mask_n, other=0.0))[None, :]
    pairs = tl.load(order_ptr + places, mask=mask_m, other=0).to(tl.int64)
    tl.store(
        (outputs_ptr + pairs * HIDDEN)[:, None] + offs_n[None, :],
        acc,
        mask=mask_m[:, None] & mask_n[None, :],
    )


def expert_mlp(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    gate: Gate | None = SILU,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.expert_mlp`, which validates and describes the arguments."""
    num_experts, hidden, inner_size = down.shape
    num_tokens, top_k = expert_ids.shape
    out = x.new_empty((num_tokens, hidden))
    num_pairs = num_tokens * top_k
    if num_pairs == 0:
        return out.zero_()
    tile = choose_tile(num_pairs, num_experts, x)
    slots = num_slots(num_pairs, num_experts, tile.rows)
    order = x.new_empty(num_pairs, dtype=torch.int32)
    starts = x.new_empty(num_experts + 1, dtype=torch.int32)
    inner = x.new_empty((num_pairs, inner_size))
    outputs = x.new_empty((num_pairs, hidden), dtype=torch.float32)
    sort_pairs_kernel[(num_experts + 1,)](
        expert_ids, order, starts, num_pairs, num_experts, *expert_ids.stride(),
        TOP_K=top_k, BLOCK=SHORT_SORT if num_pairs <= SHORT_SORT else SORT_BLOCK,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    meta = {
        "HIDDEN": hidden,
        "INNER": inner_size,
        "TOP_K": top_k,
        "BY_PAIR": num_pairs < slots,
        "PRECISION": dot_precision(x.device),
        "INDEX": index_dtype(1, x, up, down),
        "BLOCK_M": tile.rows,
        "BLOCK_K": tile.depth,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "enable_fp_fusion": True,
    }
    slots = min(slots, num_pairs)
    slope, cubic, limit, offset = gate or SILU
    up_kernel[(slots, -(-inner_size // tile.columns))](
        x, up, up_bias, expert_ids, order, starts, inner, num_experts,
        *x.stride(), *up.stride(), *strides_of(up_bias, 2), *expert_ids.stride(),
        IS_GATED=gate is not None, SLOPE=slope, CUBIC=cubic, LIMIT=limit, OFFSET=offset,
        BLOCK_N=tile.columns, **meta,
    )  # fmt: skip
    down_kernel[(slots, -(-hidden // tile.down_columns))](
        inner, down, down_bias, expert_ids, order, starts, outputs, num_experts,
        *down.stride(), *strides_of(down_bias, 2), *expert_ids.stride(),
        BLOCK_N=tile.down_columns, **meta,
    )  # fmt: skip
    sum_choices_kernel[(num_tokens, -(-hidden // SUM_BLOCK))](
        outputs, expert_ids, expert_weights, out, num_experts,
        *expert_ids.stride(), *expert_weights.stride(),
        HIDDEN=hidden, TOP_K=top_k, BLOCK_N=min(SUM_BLOCK, next_power_of_2(hidden)),
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return out
