"""Where one array of a recurrent state lies in its page."""

from typing import NamedTuple

import torch


class StateField(NamedTuple):
    """Where one array of a recurrent state lies in its page.

    Attributes:
        offset_bytes: First byte in the page, a multiple of the size of an element.
        shape: Extent of each axis, as the typed state has them.
        stride: Elements of `dtype` from one index to the next, for each axis of `shape`.
        dtype: What the page holds.
    """

    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end_bytes(self) -> int:
        """The first byte of the page after the field, counted from the page's first."""
        if 0 in self.shape:
            return self.offset_bytes
        last = sum(
            (extent - 1) * step for extent, step in zip(self.shape, self.stride, strict=True)
        )
        return self.offset_bytes + (last + 1) * self.dtype.itemsize
