"""The gate of a gated layer for CPUs. A task is a few rows."""

from torch import Tensor

from blockstride.kernels.common.cpu.lanes import LANES, load, store
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    float_bits,
    float_of,
    num_tasks,
    shifted,
    stack_f32,
)
from blockstride.kernels.common.cpu.tensors import delivered, float_rows, is_float_rows
from blockstride.kernels.common.cpu.vector_math import ONE, exp, fma, silu
from blockstride.kernels.mlp.gate import SILU, Gate

# floats of a task, worth a few microseconds
TASK_FLOATS = 16384


@Program
def _gate(address):
    (
        gate_up, out, num_rows, inner, rows_per_task, stride_gate_up, stride_out,
        is_silu, slope, cubic, limit, offset,
    ) = arguments(address, 12)  # fmt: skip
    slope, cubic, limit, offset = (
        float_of(slope), float_of(cubic), float_of(limit), float_of(offset),
    )  # fmt: skip
    gate, up = stack_f32(LANES), stack_f32(LANES)
    task = claim(address)
    while task < num_tasks(address):
        first = task * rows_per_task
        task = claim(address)
        for row in range(first, min(first + rows_per_task, num_rows)):
            source = f32_at(gate_up + 4 * row * stride_gate_up)
            target = f32_at(out + 4 * row * stride_out)
            for i in range(0, inner, LANES):
                width = min(LANES, inner - i)
                load(gate, shifted(source, i), width)
                load(up, shifted(source, inner + i), width)
                if is_silu:
                    # what most models have, in three quarters of the time
                    for lane in range(LANES):
                        gate[lane] = silu(gate[lane]) * up[lane]
                else:
                    for lane in range(LANES):
                        gated, factor = gate[lane], up[lane]
                        gated = limit if gated > limit else gated
                        factor = limit if factor > limit else factor
                        factor = -limit if factor < -limit else factor
                        steep = fma(cubic * gated, gated, slope)
                        gate[lane] = gated / (ONE + exp(-gated * steep)) * (factor + offset)
                store(shifted(target, i), gate, width)


def gate_and_mul(gate_up: Tensor, gate: Gate, *, out: Tensor | None) -> Tensor:
    """See `blockstride.kernels.gate_and_mul`."""
    *batch, twice_inner = gate_up.shape
    inner = twice_inner // 2
    if len(batch) != 1:
        gated = gate_and_mul(gate_up.reshape(-1, twice_inner), gate, out=None)
        return delivered(gated.view(*batch, inner), out, gate_up.dtype)
    rows = float_rows(gate_up)
    result = out
    if result is None or not is_float_rows(result):
        result = rows.new_empty(batch[0], inner)
    rows_per_task = max(1, TASK_FLOATS // max(1, inner))
    _gate(
        -(-batch[0] // rows_per_task), 2,
        rows.data_ptr(), result.data_ptr(), batch[0], inner, rows_per_task,
        rows.stride()[0], result.stride()[0], int(gate == SILU), *map(float_bits, gate),
    )  # fmt: skip
    return delivered(result, out, gate_up.dtype)
