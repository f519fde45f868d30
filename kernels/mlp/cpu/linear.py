"""Products with packed matrices for CPUs.

A task is a few panels of the matrix and up to 256 rows. Inputs are taken 256 at a time, so that
the weights of a tile stay in the nearest cache while rows go by. Many rows are first brought into
the order in which tiles read them.
"""

import torch
from torch import Tensor

from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    f32_at,
    inlined,
    num_tasks,
    shifted,
    transpose_16,
)
from blockstride.kernels.common.cpu.tensors import float_rows, float_vector
from blockstride.kernels.common.cpu.widen import KINDS, itemsize_of
from blockstride.kernels.mlp.cpu.product import MAX_ROWS, PANELS_OF, product
from blockstride.kernels.mlp.packed_weight import PANEL, PackedWeight

# inputs whose terms are summed before the sum is added to others
INPUTS = 256
ROWS_PER_TASK = 256
# rows that stand side by side, input by input, once they are brought into order; from so many on
ROWS_BESIDE, MANY_ROWS = 16, 33
# bytes of weights that are worth waking a thread for
GRAIN_BYTES = 1 << 16


@inlined
def multiply_rows(
    out, stride_out, x, stride_group, stride_row, step, panels, dim, dim_out, bias,
    first_row, last_row, num_panels, kind,
):  # fmt: skip
    """Multiply rows by some panels, of which `dim_out` outputs are wanted.

    Args:
        out: Address of the first output of row 0; strides are in elements.
        stride_out: From row to row.
        x: Address of the first input of row 0.
        stride_group: From 16 rows to the next 16.
        stride_row: From row to row among those.
        step: From input to input.
        panels: Address of the first panel.
        dim: Inputs.
        dim_out: Outputs of these panels that there are.
        bias: Address of the bias of the first output; 0 for none.
        first_row: The first row.
        last_row: One past the last.
        num_panels: How many there are.
        kind: What they hold.
    """
    size = PANEL * itemsize_of(kind)
    for first in range(0, dim, INPUTS):
        count = min(INPUTS, dim - first)
        for row in range(first_row, last_row, MAX_ROWS):
            place = row // ROWS_BESIDE * stride_group + row % ROWS_BESIDE * stride_row
            product(
                out + 4 * row * stride_out, 4 * stride_out,
                x + 4 * (place + first * step), 4 * stride_row, 4 * step,
                panels + first * size, dim * size, count, bias, first,
                min(MAX_ROWS, last_row - row), num_panels, dim_out, kind,
            )  # fmt: skip


@Program
def _multiply(address):
    (
        x, panels, bias, out, num_rows, dim, dim_out, columns, panel_tasks,
        stride_group, stride_row, step, stride_out, kind,
    ) = arguments(address, 14)  # fmt: skip
    num_panels = (dim_out + PANEL - 1) // PANEL
    task = claim(address)
    while task < num_tasks(address):
        panel, row = task % panel_tasks * columns, task // panel_tasks * ROWS_PER_TASK
        task = claim(address)
        output = PANEL * panel
        multiply_rows(
            out + 4 * output, stride_out, x, stride_group, stride_row, step,
            panels + output * dim * itemsize_of(kind), dim, dim_out - output,
            bias + 4 * output if bias != 0 else 0,
            row, min(row + ROWS_PER_TASK, num_rows), min(columns, num_panels - panel), kind,
        )  # fmt: skip


@Program
def _order_rows(address):
    x, out, num_rows, dim, stride_x = arguments(address, 5)
    whole = dim // ROWS_BESIDE * ROWS_BESIDE
    task = claim(address)
    while task < num_tasks(address):
        first = task * ROWS_BESIDE
        task = claim(address)
        source, target = f32_at(x + 4 * first * stride_x), f32_at(out + 4 * first * dim)
        rows, begin = min(ROWS_BESIDE, num_rows - first), 0
        if rows == ROWS_BESIDE:
            for k in range(0, whole, ROWS_BESIDE):
                transpose_16(
                    shifted(target, k * ROWS_BESIDE), ROWS_BESIDE, shifted(source, k), stride_x
                )
            begin = whole
        for row in range(rows):
            for k in range(begin, dim):
                target[k * ROWS_BESIDE + row] = source[row * stride_x + k]


def ordered_rows(rows: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Rows as `multiply_rows` reads them best, and three strides: of 16 rows, a row, an input."""
    (num_rows, dim), stride = rows.shape, rows.stride()[0]
    if num_rows < MANY_ROWS:
        return rows, (ROWS_BESIDE * stride, stride, 1)
    groups = -(-num_rows // ROWS_BESIDE)
    ordered = torch.empty(groups * ROWS_BESIDE * dim)
    _order_rows(groups, 2, rows.data_ptr(), ordered.data_ptr(), num_rows, dim, stride)
    return ordered, (ROWS_BESIDE * dim, 1, ROWS_BESIDE)


def panels_of_task(num_rows: int) -> int:
    """Panels that a task takes, where so many rows are multiplied."""
    return next(panels for rows, panels in PANELS_OF.items() if rows >= min(num_rows, MAX_ROWS))


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """See `blockstride.kernels.linear`."""
    (num_rows, dim), dim_out = x.shape, weight.shape[0]
    bias, offset = float_vector(bias)
    rows, strides = ordered_rows(float_rows(x))
    out = torch.empty(num_rows, dim_out)
    columns, kind = panels_of_task(num_rows), KINDS[weight.panels.dtype]
    panel_tasks = -(-dim_out // (PANEL * columns))
    task_bytes = columns * PANEL * dim * weight.panels.itemsize * min(num_rows, ROWS_PER_TASK)
    _multiply(
        panel_tasks * -(-num_rows // ROWS_PER_TASK), max(1, GRAIN_BYTES // max(1, task_bytes)),
        rows.data_ptr(), weight.panels.data_ptr(), offset, out.data_ptr(),
        num_rows, dim, dim_out, columns, panel_tasks, *strides, dim_out, kind,
    )  # fmt: skip
    return out if x.dtype is torch.float32 else out.to(x.dtype)
