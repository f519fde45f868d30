"""A product of a few rows with a matrix for CPUs, bound by one reading of the matrix.

A task is some rows of the matrix. It takes them four at a time, so that their 4 x dim floats stay
in the first-level cache while all rows of `x` pass, four at a time too: 16 sums of 16 lanes each
fill the vector registers, and eight loads feed sixteen fused multiply-adds.
"""

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from blockstride.kernels.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    num_tasks,
    primitive,
)

LANES, TILE = 16, 4
MAX_ROWS = 16
# rows of the matrix that make a task
TASK_OUTPUTS = 32
# tasks that make one more thread worth starting
GRAIN = 2

FLOAT, INT64 = ir.FloatType(), ir.IntType(64)
ROW = ir.VectorType(FLOAT, LANES)


@primitive
def _dot_tile(typing_context, weight, stride_weight, x, stride_x, dim, out, stride_out):
    """`out[m, r] = x[m] . weight[r]` for four rows of each; `dim` is a multiple of 16."""

    def generate(context, builder, signature, values):
        weight, stride_weight, x, stride_x, dim, out, stride_out = values
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ROW, (ROW, ROW, ROW)), f"llvm.fma.v{LANES}f32"
        )
        total = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(FLOAT, (FLOAT, ROW)),
            f"llvm.vector.reduce.fadd.v{LANES}f32",
        )
        sums = [cgutils.alloca_once(builder, ROW) for _ in range(TILE * TILE)]
        for place in sums:
            builder.store(ir.Constant(ROW, [0.0] * LANES), place)

        def row(base, stride, index, column):
            start = builder.add(builder.mul(stride, INT64(index)), column)
            pointer = builder.bitcast(builder.gep(base, [start]), ROW.as_pointer())
            return builder.load(pointer, align=4)

        with cgutils.for_range_slice(builder, INT64(0), dim, INT64(LANES), INT64) as (column, _):
            weights = [row(weight, stride_weight, r, column) for r in range(TILE)]
            for m in range(TILE):
                inputs = row(x, stride_x, m, column)
                for r in range(TILE):
                    place = sums[m * TILE + r]
                    product = builder.call(fma, (weights[r], inputs, builder.load(place)))
                    builder.store(product, place)
        for m in range(TILE):
            for r in range(TILE):
                lanes = builder.load(sums[m * TILE + r])
                value = builder.call(total, (FLOAT(-0.0), lanes), fastmath=("reassoc",))
                place = builder.add(builder.mul(stride_out, INT64(m)), INT64(r))
                builder.store(value, builder.gep(out, [place]))
        return context.get_dummy_value()

    integer = types.int64
    return types.void(weight, integer, x, integer, integer, out, integer), generate


@Program
def _few_rows(address):
    (
        x, weight, out, num_rows, dim, dim_out, stride_x, stride_weight, stride_out,
    ) = arguments(address, 9)  # fmt: skip
    task = claim(address)
    while task < num_tasks(address):
        first = task * TASK_OUTPUTS
        task = claim(address)
        for r in range(first, min(first + TASK_OUTPUTS, dim_out), TILE):
            rows = f32_at(weight + 4 * r * stride_weight)
            for m in range(0, num_rows, TILE):
                inputs = f32_at(x + 4 * m * stride_x)
                outputs = f32_at(out + 4 * (m * stride_out + r))
                _dot_tile(rows, stride_weight, inputs, stride_x, dim, outputs, stride_out)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the program below takes this product, and is the faster one."""
    return (
        0 < x.shape[0] <= MAX_ROWS
        and x.dtype is torch.float32
        and x.shape[1] % LANES == 0
        and weight.shape[0] % TILE == 0
        and x.stride()[1] == 1
        and weight.stride()[1] == 1
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `blockstride.kernels.linear`; for arguments that fit."""
    num_rows, dim = x.shape
    padded = -(-num_rows // TILE) * TILE
    if num_rows == 1:
        # a tile of one row, read four times
        x = x.expand(TILE, dim)
    elif padded != num_rows:
        x = torch.cat([x, x[: padded - num_rows]])
    out = x.new_empty(padded, weight.shape[0])
    _few_rows(
        -(-weight.shape[0] // TASK_OUTPUTS), GRAIN,
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), padded, dim, weight.shape[0],
        x.stride()[0], weight.stride()[0], out.stride()[0],
    )  # fmt: skip
    out = out[:num_rows]
    return out if bias is None else out.add_(bias)
