"""A page: the fields of one layer for one block, segment after segment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from blockstride.checks import expect
from blockstride.layouts.field import Field, resize

ALIGNMENT = 16
"""Bytes on which every segment and every cell starts: the widest access of a GPU thread."""


def align(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `to`."""
    return -(-nbytes // to) * to


@dataclass(frozen=True)
class Segment:
    """A dense array in a page: one field, or several side by side along one content axis.

    Joining decides packing. `k` and `v` joined along `content` are one array whose rows hold K,
    then V; apart, they are two planes of the block. `conv.x`, `conv.B`, `conv.C` joined along
    `channel` are the one convolution state that a kernel wants. Fields keep their names and their
    shards either way, so nothing above a segment asks how it was packed.

    Attributes:
        name: Name of the whole array.
        fields: The fields, equal in dtype and in every axis but `join`.
        join: Name of the content axis along which they stand side by side; "" for a single field.

    Raises:
        ValueError: Fields that differ where they must be equal, or no axis to join them along.
    """

    name: str
    fields: tuple[Field, ...]
    join: str = ""

    def __post_init__(self) -> None:
        first = self.fields[0]
        names = [axis.name for axis in first.axes]
        if self.join or len(self.fields) > 1:
            expect(self.join in names, f"{self.name}.join", f"one of {names}", repr(self.join))
        for field in self.fields[1:]:
            same = field.dtype == first.dtype and (
                resize(field.axes, self.join, 1) == resize(first.axes, self.join, 1)
            )
            expect(same, field.name, f"the axes and dtype of {first.name}", field.axes)
        if self.join:
            logical = first.axis(self.join).logical
            expect(logical == "C", f"{self.name}.join", "a content axis", self.join)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that all fields share."""
        return self.fields[0].dtype

    @cached_property
    def whole(self) -> Field:
        """The array as one unsharded field, as wide along `join` as its fields together."""
        first = self.fields[0]
        axes = first.axes
        if self.join:
            total = sum(field.axis(self.join).extent for field in self.fields)
            axes = resize(axes, self.join, total)
        return Field(self.name, axes, first.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array in one page, without alignment."""
        return self.whole.nbytes

    def starts(self) -> dict[str, int]:
        """First element of each field along `join`."""
        starts, start = {}, 0
        for field in self.fields:
            starts[field.name] = start
            start += field.axis(self.join).extent if self.join else 0
        return starts


@dataclass(frozen=True)
class Page:
    """What one layer keeps for one (kernel) block.

    Attributes:
        segments: The arrays, in memory order. Padding is no part of a page: it lives in strides.

    Raises:
        ValueError: No segment, or two fields or segments of one name.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for part, members in (("fields", self.fields), ("segments", self.segments)):
            names = [member.name for member in members]
            distinct = bool(names) and len(set(names)) == len(names)
            expect(distinct, f"page.{part}", "distinct names", names)

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields, in memory order."""
        return tuple(field for segment in self.segments for field in segment.fields)

    def extent(self, logical: str) -> int:
        """Extent of `"H"`, `"N"` or `"C"` over the page, the largest of its segments."""
        return max(segment.whole.extent(logical) for segment in self.segments)

    def offsets(self) -> dict[str, int]:
        """Byte at which each segment starts, where the page is one run."""
        offsets, offset = {}, 0
        for segment in self.segments:
            offsets[segment.name] = offset
            offset += align(segment.nbytes)
        return offsets

    @property
    def nbytes(self) -> int:
        """Bytes of the page as one run: its segments, each aligned, one after the other."""
        return sum(align(segment.nbytes) for segment in self.segments)

    def cell_bytes(self, inner: str) -> int:
        """Bytes of a cell that holds the logical axes `inner`; the axes outside count cells.

        Raises:
            ValueError: An axis outside the cell differs between segments, so that no common count
                of cells exists.
        """
        outside = [axis for axis in "HNC" if axis not in inner]
        for axis in outside:
            extents = {segment.whole.extent(axis) for segment in self.segments}
            expect(len(extents) == 1, f"axis {axis}", "equal in all segments of a page", extents)
        return sum(
            align(segment.dtype.itemsize * prod(segment.whole.extent(axis) for axis in inner))
            for segment in self.segments
        )

    def num_cells(self, inner: str) -> int:
        """Cells that make up the page when a cell holds the logical axes `inner`."""
        return prod(self.extent(axis) for axis in "HNC" if axis not in inner)
