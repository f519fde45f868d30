"""Rows behind the last sequence, which belong to none: they are zero."""

from torch import Tensor

from blockstride.kernels.common.cpu.lanes import zero_rows
from blockstride.kernels.common.cpu.native import Program, arguments, claim, i32_at, num_tasks


@Program
def _zero(address):
    rows, query_start_loc, num_seqs, num_rows, width, stride = arguments(address, 6)
    task = claim(address)
    while task < num_tasks(address):
        task = claim(address)
        end = int(i32_at(query_start_loc)[num_seqs])
        if end < num_rows:
            zero_rows(rows + 4 * end * stride, stride, num_rows - end, width)


def zero_slack(result: Tensor, query_start_loc: Tensor) -> None:
    """Zero the rows behind the last sequence, whose number is not asked for here.

    Args:
        result: Float32 rows `[num_rows, ...]`, the elements of each side by side.
        query_start_loc: Prefix sum of the number of rows of each sequence, int32.
    """
    num_rows, num_seqs = len(result), len(query_start_loc) - 1
    if num_rows > 0:
        _zero(
            1, 1, result.data_ptr(), query_start_loc.contiguous().data_ptr(), num_seqs, num_rows,
            result[0].numel(), result.stride()[0],
        )  # fmt: skip
