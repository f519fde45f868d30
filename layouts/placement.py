"""Placement: the byte at which every element of a group's pages lies. Arithmetic, no memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.field import Field
from blockstride.layouts.groups import CacheGroup
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from blockstride.layouts.page import ALIGNMENT, Page, Segment, align


@dataclass(frozen=True)
class StridedField:
    """A field (or whole segment) of all layer slots and blocks, as one strided array of bytes.

    Attributes:
        field: Names, extents and dtype of the axes inside a kernel block.
        offset: Byte of slot 0, block 0, element 0 from the start of the pool's storage.
        layer_stride: Bytes from one layer slot to the next.
        block_stride: Bytes from one kernel block to the next.
        strides: Bytes along each axis of `field`.
    """

    field: Field
    offset: int
    layer_stride: int
    block_stride: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class GroupPlacement:
    """Where the pages of one group lie in a pool.

    A logical block of `block_size` tokens is `kernel_blocks` kernel blocks, numbered
    `block * kernel_blocks + i`: the pool is laid out in those, so one block stride reaches them all
    in padded pages and under every stride order. Along the axes of the layout down to the last of L
    and B, cells follow each other; padding is spread evenly at the end of cells. Hence element
    (slot, block, ...) of a field is at `offset + slot * layer_stride + block * block_stride + ...`.

    Attributes:
        group: The layers and their spec, of this rank.
        layout: Stride order of the pool.
        num_slots: Layer slots of the pool.
        num_blocks: Logical blocks of the pool, the null block included.
        block_size: Tokens per logical block.
        kernel_blocks: Kernel blocks per logical block; 1 for states.
        page_bytes: Bytes of a logical block in one slot, padding included.

    Raises:
        ValueError: A page that does not fit `page_bytes`, a padding that can't be spread over the
            cells, or an order that can't hold the page's segments.
    """

    group: CacheGroup
    layout: KVCacheLayout
    num_slots: int
    num_blocks: int
    block_size: int
    kernel_blocks: int
    page_bytes: int

    def __post_init__(self) -> None:
        expect(self.num_blocks > 0, "num_blocks", "at least 1", self.num_blocks)
        layers = len(self.group.layer_names)
        expect(layers <= self.num_slots, "num_slots", f"at least {layers}", self.num_slots)
        needed, quantum = page_demand(self.page, self.layout, self.kernel_blocks)
        expect(
            self.page_bytes % quantum == 0 and self.page_bytes >= needed,
            "page_bytes",
            f"a multiple of {quantum}, at least {needed}",
            self.page_bytes,
        )
        if not self.group.spec.has_tokens:
            one_run = self.layout.is_content_innermost and set("HN").isdisjoint(
                axis for axis in self.layout.outer if self.page.extent(axis) > 1
            )
            expect(one_run, "layout", "content innermost, as a state's page needs", self.layout)

    @cached_property
    def page(self) -> Page:
        """The page of one kernel block."""
        tokens = self.block_size // self.kernel_blocks if self.group.spec.has_tokens else 1
        return self.group.spec.page(tokens)

    @cached_property
    def _strides(self) -> dict[str, int]:
        """Bytes along L, B (kernel blocks) and every axis that counts cells."""
        cells = self.page.num_cells(self.layout.inner) * self.kernel_blocks
        extents = {"L": self.num_slots, "B": self.num_blocks * self.kernel_blocks}
        strides, stride = {}, self.page_bytes // cells
        for axis in reversed(self.layout.outer):
            strides[axis] = stride
            stride *= extents.get(axis) or self.page.extent(axis)
        return strides

    def segment(self, name: str) -> StridedField:
        """Placement of a whole segment."""
        offset = 0
        for segment in self.page.segments:
            if segment.name == name:
                return self._place(segment, segment.whole, offset, 0)
            offset += self._run_bytes(segment)
        raise KeyError(name)

    @cached_property
    def fields(self) -> tuple[StridedField, ...]:
        """Placement of every field, in memory order."""
        placed, offset = [], 0
        for segment in self.page.segments:
            for field in segment.fields:
                placed.append(self._place(segment, field, offset, segment.starts()[field.name]))
            offset += self._run_bytes(segment)
        return tuple(placed)

    def _run_bytes(self, segment: Segment) -> int:
        inner = prod(segment.whole.extent(axis) for axis in self.layout.inner)
        return align(inner * segment.dtype.itemsize)

    def _place(self, segment: Segment, field: Field, offset: int, start: int) -> StridedField:
        whole = segment.whole
        logical, stride = {}, whole.dtype.itemsize
        for axis in reversed(self.layout.inner):
            logical[axis] = stride
            stride *= whole.extent(axis)
        logical = {**self._strides, **logical}
        # content axes are dense among themselves, in the order the segment lists them
        strides: dict[str, int] = {}
        dense = dict.fromkeys("HNC", 1)
        for axis in reversed(whole.axes):
            strides[axis.name] = logical[axis.logical] * dense[axis.logical]
            dense[axis.logical] *= axis.extent
        return StridedField(
            field,
            offset + (start * strides[segment.join] if segment.join else 0),
            self._strides["L"],
            self._strides["B"],
            tuple(strides[axis.name] for axis in field.axes),
        )

    def view(self, storage: Tensor, placed: StridedField, slot: int) -> Tensor:
        """Typed view `[num_kernel_blocks, *axes]` of one slot of a placed field.

        Args:
            storage: The pool's bytes, 1-D int8.
            placed: One of `fields`, or a `segment`.
            slot: Layer slot.
        """
        start = self._start(storage, slot) + placed.offset
        dtype, size = placed.field.dtype, placed.field.dtype.itemsize
        return storage.view(dtype).as_strided(
            (self.num_blocks * self.kernel_blocks, *placed.field.shape),
            (placed.block_stride // size, *(stride // size for stride in placed.strides)),
            start // size,
        )

    def byte_view(self, storage: Tensor, placed: StridedField, slot: int) -> Tensor:
        """The bytes of `view`, int8 `[num_kernel_blocks, *axes, itemsize]`, in any stride order."""
        return storage.as_strided(
            (
                self.num_blocks * self.kernel_blocks,
                *placed.field.shape,
                placed.field.dtype.itemsize,
            ),
            (placed.block_stride, *placed.strides, 1),
            self._start(storage, slot) + placed.offset,
        )

    def _start(self, storage: Tensor, slot: int) -> int:
        """First byte of a slot in the memory that `storage` is part of; both are checked first."""
        nbytes = self.num_slots * self.num_blocks * self.page_bytes
        expect(storage.dtype == torch.int8, "storage", torch.int8, storage.dtype, TypeError)
        expect(tuple(storage.shape) == (nbytes,), "storage", f"{nbytes} bytes", storage.numel())
        expect(0 <= slot < self.num_slots, "slot", f"0 to {self.num_slots - 1}", slot)
        address = storage.data_ptr()
        expect(address % ALIGNMENT == 0, "storage", f"{ALIGNMENT}-byte alignment", hex(address))
        # as_strided counts from the start of the whole memory, not from that of its argument
        return int(storage.storage_offset()) + slot * self._strides["L"]

    def raw(self, storage: Tensor, slot: int) -> Tensor:
        """What `bind_kv_cache` of the group's spec takes: the slot's pages, untyped for states."""
        if not self.group.spec.has_tokens:
            shape = (self.num_blocks, 1, 1, self.page.nbytes)
            strides = (self._strides["B"], self.page.nbytes, self.page.nbytes, 1)
            return storage.as_strided(shape, strides, self._start(storage, slot))
        planes = [
            self._logical(self.view(storage, self.segment(s.name), slot), s)
            for s in self.page.segments
        ]
        if len(planes) == 1:
            return planes[0]
        first = self.segment(self.page.segments[0].name)
        apart = self.segment(self.page.segments[1].name).offset - first.offset
        return planes[0].as_strided(
            (planes[0].shape[0], len(planes), *planes[0].shape[1:]),
            (planes[0].stride(0), apart // first.field.dtype.itemsize, *planes[0].stride()[1:]),
        )

    def planes(self, storage: Tensor) -> list[Tensor]:
        """All layers at once, `[layers, num_kernel_blocks, H, N, C]` of each plane of a page.

        A page of tokens has one plane, or one of keys and one of values; a state is one of bytes.

        Args:
            storage: The pool's bytes, 1-D int8.
        """
        raw = self.raw(storage, 0)
        layers, step = len(self.group.layer_names), self._strides["L"] // raw.dtype.itemsize
        return [
            plane.as_strided(
                (layers, *plane.shape), (step, *plane.stride()), int(plane.storage_offset())
            )
            for plane in (raw.unbind(1) if raw.dim() == 5 else [raw])
        ]

    def _logical(self, view: Tensor, segment: Segment) -> Tensor:
        """`[blocks, H, N, C]` of a typed view; a page without heads gets one."""
        has_heads = any(axis.logical == "H" for axis in segment.whole.axes)
        return view if has_heads else view.unsqueeze(1)


def page_demand(page: Page, layout: KVCacheLayout, kernel_blocks: int) -> tuple[int, int]:
    """What a logical block of `kernel_blocks` pages asks of one layer slot.

    Returns:
        The bytes it needs, and the quantum of which any larger `page_bytes` must be a multiple so
        that every cell still starts aligned.
    """
    cells = page.num_cells(layout.inner) * kernel_blocks
    return page.cell_bytes(layout.inner) * cells, ALIGNMENT * cells
