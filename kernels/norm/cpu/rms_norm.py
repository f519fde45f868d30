"""Root mean square normalisation for CPUs.

A task is a few rows; the groups of a row are normalised one by one. The squares are summed in 64
lanes and the lanes by halves, so that rounding errors grow with the logarithm of the width.
"""

import math

import numpy as np
import torch
from torch import Tensor

from blockstride.kernels.common.cpu.lanes import LANES, ZERO, load, store, sum_lanes
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    float_bits,
    float_of,
    inlined,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import (
    address_of,
    delivered,
    float_rows,
    is_float_rows,
    result_like,
)
from blockstride.kernels.common.cpu.vector_math import ONE, silu

# floats of a task, worth a few microseconds
TASK_FLOATS = 32768


@inlined
def _multiply_by_silu(lanes, scratch, gates, width):
    load(scratch, gates, width)
    for lane in range(LANES):
        lanes[lane] *= silu(scratch[lane])


@Program
def _norm(address):
    (
        x, weight, residual, gate, out, num_rows, dim, group_size, rows_per_task, eps,
        stride_x, stride_residual, stride_gate, stride_out, norm_before_gate,
    ) = arguments(address, 15)  # fmt: skip
    lanes, squares, gain = stack_f32(LANES), stack_f32(LANES), stack_f32(LANES)
    other = stack_f32(LANES)
    groups = dim // group_size
    gates_first = gate != 0 and norm_before_gate == 0
    gates_last = gate != 0 and norm_before_gate != 0
    task = claim(address)
    while task < num_tasks(address):
        first = task * rows_per_task
        task = claim(address)
        for group in range(first * groups, min(first + rows_per_task, num_rows) * groups):
            row, channel = group // groups, group % groups * group_size
            source = f32_at(x + 4 * (row * stride_x + channel))
            total = f32_at(residual + 4 * (row * stride_residual + channel))
            gates = f32_at(gate + 4 * (row * stride_gate + channel))
            target = f32_at(out + 4 * (row * stride_out + channel))
            for lane in range(LANES):
                squares[lane] = ZERO
            for i in range(0, group_size, LANES):
                width = min(LANES, group_size - i)
                load(lanes, shifted(source, i), width)
                if residual != 0:
                    load(other, shifted(total, i), width)
                    for lane in range(LANES):
                        lanes[lane] += other[lane]
                    store(shifted(total, i), lanes, width)
                if gates_first:
                    _multiply_by_silu(lanes, other, shifted(gates, i), width)
                    # out may be the gate, which is not read again
                    store(shifted(target, i), lanes, width)
                for lane in range(LANES):
                    squares[lane] += lanes[lane] * lanes[lane]
            mean = sum_lanes(squares) / np.float32(group_size)
            scale = ONE / np.float32(math.sqrt(mean + float_of(eps)))
            summed = target if gates_first else total if residual != 0 else source
            for i in range(0, group_size, LANES):
                width = min(LANES, group_size - i)
                load(lanes, shifted(summed, i), width)
                load(gain, shifted(f32_at(weight), channel + i), width)
                for lane in range(LANES):
                    lanes[lane] = lanes[lane] * scale * gain[lane]
                if gates_last:
                    _multiply_by_silu(lanes, other, shifted(gates, i), width)
                store(shifted(target, i), lanes, width)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None,
    gate: Tensor | None,
    norm_before_gate: bool,
    group_size: int | None,
    out: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `blockstride.kernels.rms_norm`."""
    if residual is None:
        return _normed(x, weight, eps, None, gate, norm_before_gate, group_size, out, x.dtype)
    if residual.dim() == 2 and is_float_rows(residual):
        return _normed(
            x, weight, eps, residual, gate, norm_before_gate, group_size, out, x.dtype
        ), residual
    residual.copy_(x.float() + residual.float())
    return _normed(
        residual, weight, eps, None, gate, norm_before_gate, group_size, out, x.dtype
    ), residual


def _normed(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None,
    gate: Tensor | None,
    norm_before_gate: bool,
    group_size: int | None,
    out: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Normalise, after adding `x` to a residual that the program can take as it is."""
    rows = float_rows(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
    gain, result = float_rows(weight), out
    if result is None or result.dim() != 2 or not is_float_rows(result):
        result = result_like(rows, None)
    gates, stride_gate = None, 0
    if gate is not None:
        gates = float_rows(gate if gate.dim() == 2 else gate.reshape(-1, gate.shape[-1]))
        stride_gate = gates.stride()[0]
    num_rows, dim = rows.shape
    rows_per_task = max(1, TASK_FLOATS // max(1, dim))
    _norm(
        -(-num_rows // rows_per_task), 2,
        rows.data_ptr(), gain.data_ptr(), address_of(residual), address_of(gates),
        result.data_ptr(), num_rows, dim, group_size or dim, rows_per_task, float_bits(eps),
        rows.stride()[0], 0 if residual is None else residual.stride()[0], stride_gate,
        result.stride()[0], int(norm_before_gate),
    )  # fmt: skip
    if x.dim() != 2:
        result = result.view(x.shape)
    return delivered(result, out, dtype)
