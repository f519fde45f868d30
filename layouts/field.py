"""A field: one named, typed array inside a page, and how tensor parallelism cuts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

import torch

from blockstride.checks import CACHE_DTYPES, expect


class Interval(NamedTuple):
    """The half-open range [start, stop) of an axis, in global coordinates."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements; never negative."""
        return max(0, self.stop - self.start)

    def intersect(self, other: Interval) -> Interval:
        """The common part, of size 0 when there is none."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))


@dataclass(frozen=True)
class Shard:
    """How tensor parallelism cuts one axis of a field.

    Attributes:
        axis: Name of the axis that is cut.
        extent: Its global extent, in elements.
        unit: Elements that never part: the head size where an axis counts channels of heads.
        replicate: Whether several ranks may hold the same unit, when there are fewer units than
            ranks (KV heads of attention, groups of Mamba-2).
        held: The part that this rank holds; the whole axis before `of_rank`.
    """

    axis: str
    extent: int
    unit: int = 1
    replicate: bool = False
    held: Interval | None = None

    def __post_init__(self) -> None:
        expect(
            self.unit > 0 and self.extent > 0 and self.extent % self.unit == 0,
            self.axis,
            f"a positive multiple of {self.unit}",
            self.extent,
        )

    @property
    def interval(self) -> Interval:
        """What this rank holds, in elements of the global axis."""
        return self.held or Interval(0, self.extent)

    def of_rank(self, tp_rank: int, tp_size: int, field: str) -> Shard:
        """The cut that rank `tp_rank` of `tp_size` holds.

        Units are dealt in order, equally many to each rank. With fewer units than ranks, and only
        where `replicate` allows it, neighbouring ranks share one.

        Raises:
            ValueError: The units can't be dealt to `tp_size` ranks; the message names `field`.
        """
        units = self.extent // self.unit
        if units % tp_size == 0:
            share, first = units // tp_size, tp_rank * (units // tp_size)
        else:
            can_share = self.replicate and tp_size % units == 0
            more = f", or a multiple of {units}" if self.replicate else ""
            expect(
                can_share, "tp_size", f"a divisor of {units} ({field}.{self.axis}){more}", tp_size
            )
            share, first = 1, tp_rank // (tp_size // units)
        start = first * self.unit
        return replace(self, held=Interval(start, start + share * self.unit))


class Axis(NamedTuple):
    """One axis of a field.

    Attributes:
        name: What it counts: `head`, `token`, `channel`, `tap`, `state`, ...
        extent: Number of elements on this rank; a `token` axis has 1 until the block size is known.
        logical: The logical axis it is part of: `"H"`, `"N"`, or `"C"` for everything inside.
    """

    name: str
    extent: int
    logical: Literal["H", "N", "C"] = "C"


def resize(axes: tuple[Axis, ...], name: str, extent: int) -> tuple[Axis, ...]:
    """The same axes with another extent of the one called `name`."""
    return tuple(axis._replace(extent=extent) if axis.name == name else axis for axis in axes)


@dataclass(frozen=True)
class Field:
    """A named array inside a page.

    Attributes:
        name: Unique within a page, for example `k`, `conv.x`, `ssm`.
        axes: From outer to inner. Content axes keep this order in memory; `H` and `N` axes go where
            the stride order puts them.
        dtype: One of `kernels.checks.CACHE_DTYPES`.
        shard: The axis that tensor parallelism cuts, or None when every rank holds the whole field.

    Raises:
        ValueError: No axes, an empty or repeated axis, or a shard of an axis that is not there.
        TypeError: A dtype that a cache can't hold.
    """

    name: str
    axes: tuple[Axis, ...]
    dtype: torch.dtype
    shard: Shard | None = None

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        expect(
            self.dtype in CACHE_DTYPES, f"{self.name}.dtype", CACHE_DTYPES, self.dtype, TypeError
        )
        expect(
            bool(names) and len(set(names)) == len(names),
            f"{self.name}.axes",
            "distinct axes",
            names,
        )
        for axis in self.axes:
            expect(axis.extent > 0, f"{self.name}.{axis.name}", "a positive extent", axis.extent)
        if self.shard is not None:
            expect(
                self.shard.axis in names, f"{self.name}.shard", f"one of {names}", self.shard.axis
            )
            got = self.axis(self.shard.axis).extent
            size = self.shard.interval.size
            expect(got == size, f"{self.name}.{self.shard.axis}", f"the shard's {size}", got)

    def axis(self, name: str) -> Axis:
        """The axis called `name`."""
        return next(axis for axis in self.axes if axis.name == name)

    def extent(self, logical: str) -> int:
        """Elements along one logical axis: the product of the axes that are part of it."""
        return prod(axis.extent for axis in self.axes if axis.logical == logical)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes, outer to inner."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def nbytes(self) -> int:
        """Bytes of the field in one page."""
        return prod(self.shape) * self.dtype.itemsize

    def with_tokens(self, block_size: int) -> Field:
        """The same field for pages of `block_size` tokens; unchanged when it has no token axis."""
        tokens = tuple(
            axis._replace(extent=block_size) if axis.logical == "N" else axis for axis in self.axes
        )
        return replace(self, axes=tokens)

    def tp_shard(self, tp_rank: int, tp_size: int) -> Field:
        """The part that one rank holds; the whole field where nothing is cut."""
        if self.shard is None:
            return self
        shard = self.shard.of_rank(tp_rank, tp_size, self.name)
        axes = resize(self.axes, shard.axis, shard.interval.size)
        return replace(self, axes=axes, shard=shard)
