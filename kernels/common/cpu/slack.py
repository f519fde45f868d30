"""Rows behind the last sequence, which belong to none: they are zero."""

from torch import Tensor

from blockstride.kernels.common.cpu.lanes import zero_rows
from blockstride.kernels.common.cpu.native import Program, arguments, claim, i32_at, num_tasks


@Program
def _zero(address):
    (
        rows, query_start_loc, num_seqs, num_rows, num_heads, width, stride_row, stride_head,
    ) = arguments(address, 8)  # fmt: skip
    task = claim(address)
    while task < num_tasks(address):
        task = claim(address)
        end = int(i32_at(query_start_loc)[num_seqs])
        for head in range(num_heads):
            if end < num_rows:
                first = rows + 4 * (end * stride_row + head * stride_head)
                zero_rows(first, stride_row, num_rows - end, width)


def zero_slack(result: Tensor, query_start_loc: Tensor) -> None:
    """Zero the rows behind the last sequence, whose number is not asked for here.

    Args:
        result: Float32 rows `[num_rows, width]`, or `[num_rows, num_heads, width]`; the elements of
            a head lie side by side.
        query_start_loc: Prefix sum of the number of rows of each sequence, int32.
    """
    if result.dim() == 2:
        result = result[:, None]
    (num_rows, num_heads, width), starts = result.shape, query_start_loc.contiguous()
    _zero(
        1, 1, result.data_ptr(), starts.data_ptr(), len(starts) - 1, num_rows, num_heads, width,
        *result.stride()[:2],
    )  # fmt: skip
