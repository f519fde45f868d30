"""The order of a group's bytes in memory, outermost first, read off the strides of a placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from blockstride.layouts.placement import GroupPlacement
from blockstride.layouts.pool import NULL_BLOCK

PADDING = "padding"


class StridedAxis(NamedTuple):
    """One axis of a piece: `extent` elements that lie `stride` bytes apart.

    `is_content` says that it lies inside what one head keeps of one token, or inside a state.
    """

    name: str
    extent: int
    stride: int
    is_content: bool = False


class StridedPiece(NamedTuple):
    """The part of a field at some of its indices, as a strided set of runs.

    Attributes:
        field: Name of the field.
        segment: Name of its segment.
        start: First byte, from the start of the pool.
        dims: The axes that are left, outermost first; none of a single element.
        nbytes: Length of a run.
    """

    field: str
    segment: str
    start: int
    dims: tuple[StridedAxis, ...]
    nbytes: int

    @property
    def stop(self) -> int:
        """The byte after the last one."""
        return self.start + self.nbytes + sum((d.extent - 1) * d.stride for d in self.dims)

    def choose(self, name: str, index: int) -> StridedPiece:
        """The piece at one index of an axis; the same piece when it has no such axis."""
        start = self.start + sum(index * dim.stride for dim in self.dims if dim.name == name)
        return self._replace(start=start, dims=tuple(d for d in self.dims if d.name != name))

    def narrow(self, name: str, extent: int) -> StridedPiece:
        """The piece at the first `extent` indices of an axis."""
        dims = (d._replace(extent=extent) if d.name == name else d for d in self.dims)
        return self._replace(dims=tuple(dim for dim in dims if dim.extent > 1))

    def in_longest_runs(self) -> StridedPiece:
        """The same bytes in the longest runs: an axis whose stride is a run joins it."""
        dims, run = list(self.dims), self.nbytes
        while dims and dims[-1].stride == run:
            run *= dims.pop().extent
        return self._replace(dims=tuple(dims), nbytes=run)


class Stretch(NamedTuple):
    """Consecutive bytes that belong together.

    Attributes:
        label: What lies there: `head 3`, `k`, `padding`, ...
        start: First byte, from the start of the pool.
        nbytes: Its length.
    """

    label: str
    start: int
    nbytes: int


class Level(NamedTuple):
    """What a stretch is made of.

    Attributes:
        depth: In how many stretches it lies.
        whole: The stretch.
        axis: The axis whose elements make it up, one stride each; None where fields do.
        parts: The fields in memory order, or nothing before an axis; padding is a part of its own,
            so that elements and parts fill the stretch without a gap.
    """

    depth: int
    whole: Stretch
    axis: StridedAxis | None
    parts: tuple[Stretch, ...]

    def element(self, index: int) -> Stretch:
        """One of the elements of the axis."""
        assert self.axis is not None, "a level of fields has no elements"
        label = f"{self.axis.name} {index:,}"
        return Stretch(label, self.whole.start + index * self.axis.stride, self.axis.stride)


def pieces(placement: GroupPlacement) -> list[StridedPiece]:
    """All fields of a group, over all layer slots and blocks of its pool."""
    found, placed = [], iter(placement.fields)
    for segment in placement.page.segments:
        for field in segment.fields:
            at = next(placed)
            dims = [
                StridedAxis("layer", placement.num_slots, at.layer_stride),
                StridedAxis(
                    "block", placement.num_blocks, at.block_stride * placement.kernel_blocks
                ),
                StridedAxis("kernel block", placement.kernel_blocks, at.block_stride),
            ]
            dims += [
                StridedAxis(axis.name, axis.extent, stride, axis.logical == "C")
                for axis, stride in zip(field.axes, at.strides, strict=True)
            ]
            dims = sorted((dim for dim in dims if dim.extent > 1), key=lambda dim: -dim.stride)
            size = field.dtype.itemsize
            found.append(StridedPiece(field.name, segment.name, at.offset, tuple(dims), size))
    return found


def one_block(placement: GroupPlacement) -> list[StridedPiece]:
    """What one block, not the null block, holds of all layers of a group."""
    layers = len(placement.group.layer_names)
    block = min(NULL_BLOCK + 1, placement.num_blocks - 1)
    return [p.choose("block", block).narrow("layer", layers) for p in pieces(placement)]


def one_unit(placement: GroupPlacement) -> list[StridedPiece]:
    """The first unit of every axis that ranks share out: one head, in attention."""
    return _cut(placement, lambda size, unit, shared: unit)


def one_half(placement: GroupPlacement) -> list[StridedPiece] | None:
    """What one of twice as many ranks holds of a block; None when it can't be halved."""

    def half(size: int, unit: int, shared: bool) -> int:
        if size // unit % 2 == 0:
            return size // 2
        return size if shared and size == unit else 0

    cut = _cut(placement, half)
    return cut if all(piece.nbytes for piece in cut) else None


def _cut(placement: GroupPlacement, keep: Callable[[int, int, bool], int]) -> list[StridedPiece]:
    cut = []
    for piece, placed in zip(one_block(placement), placement.fields, strict=True):
        shard = placed.field.shard
        if shard is not None:
            extent = keep(shard.interval.size, shard.unit, shard.replicate)
            cut.append(piece.narrow(shard.axis, extent) if extent else piece._replace(nbytes=0))
        else:
            cut.append(piece)
    return cut


def runs(parts: Sequence[StridedPiece]) -> tuple[np.ndarray, np.ndarray]:
    """The first byte and the length of every run that the pieces make together, in memory order.

    Pieces that touch are one run, whatever fields they come from.
    """
    starts, lengths = [], []
    for piece in map(StridedPiece.in_longest_runs, parts):
        at = np.array([piece.start], dtype=np.int64)
        for dim in piece.dims:
            at = (at[:, None] + np.arange(dim.extent) * dim.stride).ravel()
        starts.append(at)
        lengths.append(np.full(len(at), piece.nbytes))
    order = np.argsort(np.concatenate(starts))
    start, length = np.concatenate(starts)[order], np.concatenate(lengths)[order]
    begins = np.flatnonzero(np.concatenate([[True], start[1:] != start[:-1] + length[:-1]]))
    return start[begins], np.add.reduceat(length, begins)


def levels(placement: GroupPlacement) -> list[Level]:
    """What the pool is made of, then what one of those parts is made of, and so on.

    Each level looks into one part of the level above: the first, but block 1 among blocks, as block
    0 is the null block. Content that lies in one run is not looked into.
    """
    nbytes = placement.num_slots * placement.num_blocks * placement.page_bytes
    return list(_levels(Stretch("pool", 0, nbytes), pieces(placement), 0))


def _levels(whole: Stretch, inside: list[StridedPiece], depth: int) -> Iterator[Level]:
    axis = _common_axis(whole, inside)
    if axis is not None:
        level = Level(depth, whole, axis, _tiled(whole, [], axis.extent * axis.stride))
        yield level
        index = NULL_BLOCK + 1 if axis.name == "block" else 0
        chosen = [piece.choose(axis.name, index) for piece in inside]
        yield from _levels(level.element(index), chosen, depth + 1)
        return
    clusters = _clusters(inside)
    parts = _tiled(whole, [stretch for stretch, _ in clusters])
    # a level of one part says nothing, unless it is the only one
    is_shown = len(parts) > 1 or depth == 0
    if is_shown:
        yield Level(depth, whole, None, parts)
    seen = []
    for stretch, members in clusters:
        shape = [(piece.dims, piece.nbytes) for piece in members]
        # a second field of the same shape would only repeat the first
        if not all(map(_is_leaf, members)) and shape not in seen:
            seen.append(shape)
            yield from _levels(stretch, members, depth + is_shown)


def _is_leaf(piece: StridedPiece) -> bool:
    return all(dim.is_content for dim in piece.dims) and not piece.in_longest_runs().dims


def _common_axis(whole: Stretch, inside: list[StridedPiece]) -> StridedAxis | None:
    """The outermost axis of all pieces, where each of its elements holds a part of every piece."""
    first = inside[0].dims[0] if inside[0].dims else None
    if first is None or (len(inside) == 1 and _is_leaf(inside[0])):
        return None
    for piece in inside:
        one = piece.choose(first.name, 0)
        if piece.dims[:1] != (first,) or one.stop - whole.start > first.stride:
            return None
    return first


def _clusters(inside: list[StridedPiece]) -> list[tuple[Stretch, list[StridedPiece]]]:
    """Pieces that interleave, such as the fields of one tap, taken together; in memory order."""
    clusters: list[list[StridedPiece]] = []
    for piece in sorted(inside, key=lambda piece: piece.start):
        if clusters and piece.start < max(other.stop for other in clusters[-1]):
            clusters[-1].append(piece)
        else:
            clusters.append([piece])
    found = []
    for members in clusters:
        start, stop = members[0].start, max(piece.stop for piece in members)
        label = members[0].segment
        if len(members) == 1:
            piece = members[0]
            names = [dim.name for dim in piece.dims]
            label = f"{piece.field}[{', '.join(names)}]" if len(names) > 1 else piece.field
            # the room that a strided piece takes ends where its next element would begin
            stop = max([stop, *(piece.start + d.extent * d.stride for d in piece.dims[:1])])
        found.append((Stretch(label, start, stop - start), members))
    return found


def _tiled(whole: Stretch, parts: list[Stretch], filled: int = 0) -> tuple[Stretch, ...]:
    """The parts with the padding before, between and after them, behind what is filled already."""
    tiled, at = [], whole.start + filled
    for part in [*parts, Stretch("", whole.start + whole.nbytes, 0)]:
        if part.start > at:
            tiled.append(Stretch(PADDING, at, part.start - at))
        if part.nbytes:
            tiled.append(part)
        at = part.start + part.nbytes
    return tuple(tiled)
