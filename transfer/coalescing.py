"""Coalescing: from strided arrays on two sides to the longest runs that both sides have in common.

An axis whose stride equals the run length on both sides joins the run; two runs that adjoin on both
sides become one. Nothing else is needed for any pair of stride orders, packings and shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class Dim(NamedTuple):
    """An axis to walk along.

    Attributes:
        extent: Elements.
        local: Bytes from one to the next on the local side.
        remote: Bytes from one to the next on the remote side.
    """

    extent: int
    local: int
    remote: int


class Nest(NamedTuple):
    """Runs of one length, at every combination of the positions along some axes.

    Attributes:
        local: Byte of the first run on the local side.
        remote: Byte of the first run on the remote side.
        length: Bytes of a run.
        dims: The axes that are not part of the run.
        token_strides: Bytes from one token to the next on both sides, by which pieces are placed.
    """

    local: int
    remote: int
    length: int
    dims: tuple[Dim, ...]
    token_strides: tuple[int, int] = (0, 0)

    def absorb(self) -> Nest:
        """The same bytes with as many axes as possible made part of the run."""
        dims = [dim for dim in self.dims if dim.extent > 1]
        length, grew = self.length, True
        while grew:
            joins = [dim for dim in dims if dim.local == dim.remote == length]
            grew = bool(joins)
            for dim in joins[:1]:
                length *= dim.extent
                dims.remove(dim)
        return self._replace(length=length, dims=tuple(dims))

    def adjoins(self, other: Nest) -> bool:
        """Whether every run of `other` starts where the same run of this nest ends."""
        alike = (self.dims, self.token_strides) == (other.dims, other.token_strides)
        follows = (self.local + self.length, self.remote + self.length)
        return alike and follows == (other.local, other.remote)

    def offsets(self) -> tuple[Int64[np.ndarray, " runs"], Int64[np.ndarray, " runs"]]:
        """First byte of each run, on the local and on the remote side."""
        local, remote = np.array([self.local]), np.array([self.remote])
        for dim in self.dims:
            steps = np.arange(dim.extent)
            local = (local[:, None] + steps * dim.local).ravel()
            remote = (remote[:, None] + steps * dim.remote).ravel()
        return local, remote


def coalesce(nests: Sequence[Nest]) -> list[Nest]:
    """Absorbs axes and joins neighbours until nothing grows any more.

    Args:
        nests: In the order in which their fields lie in memory.
    """
    done: list[Nest] = []
    for nest in nests:
        grown = nest.absorb()
        while done and done[-1].adjoins(grown):
            last = done.pop()
            joined = last._replace(length=last.length + grown.length)
            grown = joined.absorb()
        done.append(grown)
    return done


@dataclass(frozen=True)
class Runs:
    """Byte runs to copy, one a row.

    Attributes:
        local: First byte on the local side.
        remote: First byte on the remote side.
        length: Bytes.
        piece: The piece of the period that a run starts in.
        last_piece: The piece that it ends in.
    """

    local: Int64[np.ndarray, " runs"]
    remote: Int64[np.ndarray, " runs"]
    length: Int64[np.ndarray, " runs"]
    piece: Int64[np.ndarray, " runs"]
    last_piece: Int64[np.ndarray, " runs"]

    def sorted_by(self, *keys: np.ndarray) -> Runs:
        """The same runs in another order, the first key weighing most."""
        order = np.lexsort(keys[::-1])
        return Runs(*(column[order] for column in self.columns))

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The attributes, in order."""
        return (self.local, self.remote, self.length, self.piece, self.last_piece)


def merge_adjacent(runs: Runs, block_of_piece: Int64[np.ndarray, " pieces"]) -> Runs:
    """Joins runs that follow each other on both sides within one pair of blocks.

    Args:
        runs: Any runs that don't overlap.
        block_of_piece: A number for the pair of blocks that each piece lies in.
    """
    block = block_of_piece[runs.piece]
    runs = runs.sorted_by(block, runs.local)
    if len(runs.local) < 2:
        return runs
    block = block_of_piece[runs.piece]
    follows = (
        (block[1:] == block[:-1])
        & (runs.local[1:] == runs.local[:-1] + runs.length[:-1])
        & (runs.remote[1:] == runs.remote[:-1] + runs.length[:-1])
    )
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    return Runs(
        runs.local[first],
        runs.remote[first],
        np.add.reduceat(runs.length, first),
        np.minimum.reduceat(runs.piece, first),
        np.maximum.reduceat(runs.last_piece, first),
    )
