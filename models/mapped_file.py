"""The memory of files that weights are mapped from: what was read and copied need not stay there.

safetensors maps a file, so that a tensor of it is no copy. Its pages count as memory of this
process from when they are read, though most weights are packed or cast into memory of their own
next. So pages are given back as reading goes on. A tensor that is a view of the file for good, such
as an embedding, finds them again when it is used: they are in the system's cache of files.

Nobody may write to such a tensor, since the file is what is read again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from pathlib import Path

from torch import Tensor

HELD_BYTES = 4 << 20
"""What is read of a file before its pages are given back, a system call each time."""

RECENT_BYTES = 64 << 20
"""Of what was read so recently pages are given back each time: it may have been looked at again."""

MAPS = Path("/proc/self/maps")


class MappedPages:
    """Pages of files that tensors were read from.

    Args:
        files: The files.
    """

    def __init__(self, files: set[Path]) -> None:
        self._names = {os.fsencode(file.resolve()) for file in files}
        self._ranges: list[tuple[int, int]] = []
        # the last that were read, and how many bytes those are, and those since the last release
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_bytes = self._new_bytes = 0

    def add(self, tensor: Tensor) -> None:
        """Notes that a tensor, or what was cast of it, was read; gives back what came before."""
        storage = tensor.untyped_storage()
        first, nbytes = storage.data_ptr(), storage.nbytes()
        if self._new_bytes + nbytes > HELD_BYTES:
            self.release()
        self._recent.append((first, first + nbytes))
        self._recent_bytes += nbytes
        self._new_bytes += nbytes

    def release(self) -> None:
        """Gives back the pages of what was read lately, and what casts and joins left unused."""
        if sys.platform == "linux":
            if not all(self._is_mapped(*each) for each in self._recent):
                self._ranges = self._mapped()
            for first, end in self._recent:
                if self._is_mapped(first, end):
                    _give_back(first, end)
            # other libraries of C than GNU's do so by themselves
            with suppress(AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
        self._new_bytes = 0
        while self._recent_bytes > RECENT_BYTES:
            first, end = self._recent.popleft()
            self._recent_bytes -= end - first

    def close(self) -> None:
        """Gives back all pages of the files."""
        self.release()
        for first, end in self._ranges:
            _give_back(first, end)

    def _is_mapped(self, first: int, end: int) -> bool:
        """Whether memory is that of a file: what is given back of any other would be lost."""
        at = bisect_right(self._ranges, (first, sys.maxsize)) - 1
        return at >= 0 and end <= self._ranges[at][1]

    def _mapped(self) -> list[tuple[int, int]]:
        """Where the files are in memory."""
        ranges = []
        with suppress(OSError):
            for line in MAPS.read_bytes().splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5] in self._names:
                    first, end = (int(place, 16) for place in fields[0].split(b"-"))
                    ranges.append((first, end))
        return sorted(ranges)


def _give_back(first: int, end: int) -> None:
    page = mmap.PAGESIZE
    # whole pages only; those at the ends may be another tensor's
    first, end = -(-first // page) * page, end // page * page
    if first < end:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED
        )
