"""Mixture of experts for CPUs: tokens sorted by expert, then two products of all experts.

A visit is a token at one of its experts. Visits are sorted by expert, so that each expert's rows
lie side by side and its weights are read once. Nothing but the programs themselves looks at which
experts were chosen. All sums stay in float32 until the last; of narrower inputs only the
activations between the two products are rounded, since they are an operand of the second.
"""

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.common.cpu.lanes import LANES, ZERO, fill, load, store
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    i64_at,
    num_tasks,
    report,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import address_of, float_rows
from blockstride.kernels.common.cpu.vector_math import fma
from blockstride.kernels.common.cpu.widen import KINDS, itemsize_of
from blockstride.kernels.mlp.cpu.gate_and_mul import gate_and_mul
from blockstride.kernels.mlp.cpu.linear import multiply_rows, panels_of_task
from blockstride.kernels.mlp.gate import Gate
from blockstride.kernels.mlp.packed_weight import PANEL, PackedWeight

ROWS_PER_TASK = 64
# rows of a power of two of bytes would all want the same few lines of a cache
PADDING = 16


@Program
def _sort(address):
    ids, starts, places, num_visits, num_experts = arguments(address, 5)
    ids, starts, places = i64_at(ids), i64_at(starts), i64_at(places)
    for expert in range(num_experts + 1):
        starts[expert] = 0
    for visit in range(num_visits):
        expert = ids[visit]
        if not 0 <= expert < num_experts:
            # never 0, which is an expert
            report(address, expert)
            return
        starts[expert + 1] += 1
    for expert in range(num_experts):
        starts[expert + 1] += starts[expert]
    for visit in range(num_visits):
        expert = ids[visit]
        places[visit] = starts[expert]
        starts[expert] += 1
    for expert in range(num_experts, 0, -1):
        starts[expert] = starts[expert - 1]
    starts[0] = 0


@Program
def _gather(address):
    x, places, out, num_visits, top_k, dim, stride_x, stride_out = arguments(address, 8)
    lanes = stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        first = task * ROWS_PER_TASK
        task = claim(address)
        for visit in range(first, min(first + ROWS_PER_TASK, num_visits)):
            source = f32_at(x + 4 * (visit // top_k * stride_x))
            target = f32_at(out + 4 * (i64_at(places)[visit] * stride_out))
            for i in range(0, dim, LANES):
                load(lanes, shifted(source, i), min(LANES, dim - i))
                store(shifted(target, i), lanes, min(LANES, dim - i))


@Program
def _multiply(address):
    (
        x, panels, bias, out, starts, dim, dim_out, columns, panel_tasks, stride_x, stride_bias,
        stride_out, kind,
    ) = arguments(address, 13)  # fmt: skip
    num_panels = (dim_out + PANEL - 1) // PANEL
    panel_bytes = PANEL * dim * itemsize_of(kind)
    task = claim(address)
    while task < num_tasks(address):
        expert, panel = task // panel_tasks, task % panel_tasks * columns
        task = claim(address)
        output = PANEL * panel
        multiply_rows(
            out + 4 * output, stride_out, x, 16 * stride_x, stride_x, 1,
            panels + (expert * num_panels + panel) * panel_bytes, dim, dim_out - output,
            bias + 4 * (expert * stride_bias + output) if bias != 0 else 0,
            i64_at(starts)[expert], i64_at(starts)[expert + 1],
            min(columns, num_panels - panel), kind,
        )  # fmt: skip


@Program
def _combine(address):
    outputs, places, weights, out, num_tokens, top_k, dim, stride_outputs = arguments(address, 8)
    total, lanes = stack_f32(LANES), stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        first = task * ROWS_PER_TASK
        task = claim(address)
        for token in range(first, min(first + ROWS_PER_TASK, num_tokens)):
            target = f32_at(out + 4 * token * dim)
            for i in range(0, dim, LANES):
                width = min(LANES, dim - i)
                fill(total, ZERO)
                for visit in range(token * top_k, (token + 1) * top_k):
                    place = i64_at(places)[visit] * stride_outputs + i
                    load(lanes, f32_at(outputs + 4 * place), width)
                    weight = f32_at(weights)[visit]
                    for lane in range(LANES):
                        total[lane] = fma(weight, lanes[lane], total[lane])
                store(shifted(target, i), total, width)


def expert_mlp(
    x: Tensor,
    up: Tensor | PackedWeight,
    down: Tensor | PackedWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    gate: Gate | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """See `blockstride.kernels.expert_mlp`."""
    up, down = _packed(up), _packed(down)
    (num_tokens, hidden), (num_experts, _, inner) = x.shape, down.shape
    top_k = expert_ids.shape[1]
    num_visits, tasks = num_tokens * top_k, -(-num_tokens * top_k // ROWS_PER_TASK)
    ids = expert_ids.to(torch.int64).contiguous()
    weights, tokens = expert_weights.float().contiguous(), float_rows(x)
    starts = torch.empty(num_experts + 1, dtype=torch.int64)
    places = torch.empty(num_visits, dtype=torch.int64)
    fault = _sort(
        1, 1, ids.data_ptr(), starts.data_ptr(), places.data_ptr(), num_visits, num_experts
    )
    if fault:
        expect(False, "expert_ids", f"experts from 0 to {num_experts - 1}", fault)
    rows = torch.empty(num_visits, hidden + PADDING)
    _gather(
        tasks, 2, tokens.data_ptr(), places.data_ptr(), rows.data_ptr(),
        num_visits, top_k, hidden, tokens.stride()[0], hidden + PADDING,
    )  # fmt: skip
    raised = _product(rows, up, up_bias, starts, num_visits)
    activated = torch.empty(num_visits, inner + PADDING)[:, :inner]
    if gate is None:
        torch.square(raised.relu_(), out=activated)
    else:
        gate_and_mul(raised, gate, out=activated)
    if x.dtype is not torch.float32:
        activated.copy_(activated.to(x.dtype))
    outputs = _product(activated, down, down_bias, starts, num_visits)
    out = torch.empty(num_tokens, hidden)
    _combine(
        -(-num_tokens // ROWS_PER_TASK), 2, outputs.data_ptr(), places.data_ptr(),
        weights.data_ptr(), out.data_ptr(), num_tokens, top_k, hidden, hidden,
    )  # fmt: skip
    return out if x.dtype is torch.float32 else out.to(x.dtype)


def _packed(matrices: Tensor | PackedWeight) -> PackedWeight:
    if isinstance(matrices, PackedWeight):
        return matrices
    return PackedWeight.of(matrices.unbind(), len(matrices))


def _product(
    rows: Tensor, weight: PackedWeight, bias: Tensor | None, starts: Tensor, num_visits: int
) -> Tensor:
    """Multiply each expert's rows by its matrix."""
    num_experts, dim_out, dim = weight.shape
    bias = None if bias is None else bias.float().contiguous()
    out = torch.empty(num_visits, dim_out)
    columns = panels_of_task(-(-num_visits // num_experts))
    panel_tasks = -(-dim_out // (PANEL * columns))
    _multiply(
        num_experts * panel_tasks, 2, rows.data_ptr(), weight.panels.data_ptr(),
        address_of(bias), out.data_ptr(), starts.data_ptr(), dim, dim_out,
        columns, panel_tasks, rows.stride()[0], dim_out, dim_out, KINDS[weight.panels.dtype],
    )  # fmt: skip
    return out
