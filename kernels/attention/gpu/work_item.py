"""What a program of attention is asked to do: one row of a work list."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class WorkItem(NamedTuple):
    """The columns of a work list, in their order; a program loads `item_ptr + SEQUENCE` and on.

    Attributes:
        sequence: Whose query rows; negative where there is no work.
        first_token: The first of its query tokens that the row tile has.
        begin: Position where the range of the cache begins.
        full_begin: Where the part that every row sees whole begins.
        full_end: Where that part ends.
        end: Where the range ends.
        slot: Of the partial result; `NO_SLOT` where there is none, and the warp-specialised kernel
            may take the item.
        num_splits: Ranges that the row tile's cache is cut into; 0 in all items but its first.
    """

    sequence: Tensor
    first_token: Tensor
    begin: Tensor
    full_begin: Tensor
    full_end: Tensor
    end: Tensor
    slot: Tensor
    num_splits: Tensor


ITEM_SIZE: tl.constexpr = tl.constexpr(len(WorkItem._fields))
SEQUENCE, FIRST_TOKEN, BEGIN, FULL_BEGIN, FULL_END, END, SLOT, NUM_SPLITS = (
    tl.constexpr(WorkItem._fields.index(name)) for name in WorkItem._fields
)
NO_SLOT: tl.constexpr = tl.constexpr(-1)


@triton.jit
def load_range(item_ptr):
    """Positions: where the range begins, the part that every row sees whole, where it ends."""
    begin, end = tl.load(item_ptr + BEGIN), tl.load(item_ptr + END)
    return begin, tl.load(item_ptr + FULL_BEGIN), tl.load(item_ptr + FULL_END), end
