"""A group plan: the byte runs that take one group's blocks from a remote rank to a local one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from blockstride.layouts import Interval, StridedField
from blockstride.transfer.coalescing import Dim, Nest, Runs, coalesce, merge_adjacent
from blockstride.transfer.mapping import GroupRead, held
from blockstride.transfer.rank_cache import GroupCache
from blockstride.transfer.tokens import TokenPiece, common_pieces

ONE_STATE = (1, (TokenPiece(0, 1),))
"""The period of a group without tokens: one state, whole."""


@dataclass(frozen=True)
class RowSide:
    """Where the runs of a group plan lie on one side, as strided rows.

    Attributes:
        pool: Pool whose storage the offsets count from.
        offsets: Byte of each run in block 0.
        stride: Bytes from one (split) block to the next.
        count: Number of (split) blocks.
        split: Blocks of the plan per block of the engine.
        blocks_per_period: Blocks of the plan in one period.
    """

    pool: int
    offsets: Int64[np.ndarray, " runs"]
    stride: int
    count: int
    split: int
    blocks_per_period: int


@dataclass(frozen=True)
class Track:
    """The runs of one interval of tokens: they use the same blocks, so they share index arithmetic.

    Attributes:
        start: First token, from the start of the period.
        stop: One past the last token.
        local_block: Block of the period on the local side.
        remote_block: Block of the period on the remote side.
        rows: The slice of the plan's runs.
    """

    start: int
    stop: int
    local_block: int
    remote_block: int
    rows: slice


@dataclass(frozen=True)
class GroupPlan:
    """All runs of one (local group, group of a remote rank), for one period of blocks.

    Attributes:
        read: What is read.
        span: Tokens that one block id of the local engine stands for; 0 for states.
        window: Number of last tokens that are ever read again; None for all of them.
        period: Tokens after which the pattern repeats; 1, a state, for groups without tokens.
        local: The local side, run by run.
        remote: The remote side, run by run.
        lengths: Bytes of each run.
        tracks: The runs by the tokens they hold.
    """

    read: GroupRead
    span: int
    window: int | None
    period: int
    local: RowSide
    remote: RowSide
    lengths: Int64[np.ndarray, " runs"]
    tracks: tuple[Track, ...]


def plan_group(read: GroupRead, local: GroupCache, remote: GroupCache) -> GroupPlan:
    """Plans one group: nothing in it depends on the number of blocks or on any request.

    Args:
        read: Fields and intervals to move.
        local: The group that is written.
        remote: The group that is read.
    """
    local_split, remote_split = _splits(local, remote)
    period, pieces = ONE_STATE
    blocks = (1, 1)
    if local.tokens is not None and remote.tokens is not None:
        axes = tuple(
            axis._replace(
                block_size=axis.block_size // split,
                run_size=min(axis.run_size, axis.block_size // split),
            )
            for axis, split in ((local.tokens, local_split), (remote.tokens, remote_split))
        )
        period, pieces = common_pieces(*axes)
        blocks = tuple(period // axis.span for axis in axes)
    runs = _runs(read, local, remote, pieces)
    block_of_piece = np.array([p.local_block * blocks[1] + p.remote_block for p in pieces])
    runs = merge_adjacent(runs, block_of_piece)
    runs = runs.sorted_by(runs.piece, runs.last_piece, runs.local)
    return GroupPlan(
        read,
        local.tokens.span if local.tokens else 0,
        local.spec.window,
        period,
        _side(local, runs.local, local_split, blocks[0]),
        _side(remote, runs.remote, remote_split, blocks[1]),
        runs.length,
        tuple(_tracks(runs, pieces)),
    )


def _splits(local: GroupCache, remote: GroupCache) -> tuple[int, int]:
    """Into how many blocks to split those of each side so that both hold as many tokens.

    Rows of small blocks that follow each other are dense, and NIXL merges their neighbours. Where
    blocks can't be split, or tokens are dealt to several ranks, the period does the work alone.
    """
    if local.tokens is None or remote.tokens is None:
        return 1, 1
    if max(local.tokens.cp_size, remote.tokens.cp_size) > 1:
        return 1, 1
    ours, theirs = local.tokens.block_size, remote.tokens.block_size
    if ours > theirs and local.can_split(theirs):
        return ours // theirs, 1
    if theirs > ours and remote.can_split(ours):
        return 1, theirs // ours
    return 1, 1


def _side(group: GroupCache, offsets: np.ndarray, split: int, blocks: int) -> RowSide:
    placement = group.placement
    block_stride = placement.fields[0].block_stride * placement.kernel_blocks
    return RowSide(
        group.pool, offsets, block_stride // split, placement.num_blocks * split, split, blocks
    )


def _runs(
    read: GroupRead, local: GroupCache, remote: GroupCache, pieces: Sequence[TokenPiece]
) -> Runs:
    """The runs of all fields, layers and pieces, before neighbours are merged across those."""
    columns = []
    for size in sorted({piece.size for piece in pieces}):
        which = np.array([i for i, piece in enumerate(pieces) if piece.size == size])
        spots = _spots(local, remote, [pieces[i] for i in which])
        for nest in coalesce(list(_nests(read, local, remote, size))):
            starts = nest.offsets()
            ours, theirs = (
                (kernel[:, None] + token[:, None] * stride + start).ravel()
                for (kernel, token), stride, start in zip(
                    spots, nest.token_strides, starts, strict=True
                )
            )
            piece = np.repeat(which, len(starts[0]))
            columns.append((ours, theirs, np.full(len(ours), nest.length), piece, piece))
    return Runs(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _spots(
    local: GroupCache, remote: GroupCache, pieces: Sequence[TokenPiece]
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Where pieces start on each side: bytes to their kernel block, and tokens within that."""
    tokens = (
        np.array([piece.local_token for piece in pieces]),
        np.array([piece.remote_token for piece in pieces]),
    )
    spots = []
    for group, token in zip((local, remote), tokens, strict=True):
        placement = group.placement
        kernel, rest = np.divmod(token, placement.block_size // placement.kernel_blocks)
        spots.append((kernel * placement.fields[0].block_stride, rest))
    return spots[0], spots[1]


def _nests(read: GroupRead, local: GroupCache, remote: GroupCache, size: int) -> Iterator[Nest]:
    """One nest for each run of layers and part of a field, for a piece of `size` tokens."""
    ours = {placed.field.name: placed for placed in local.placement.fields}
    theirs = {placed.field.name: placed for placed in remote.placement.fields}
    parts = sorted(read.fields, key=lambda part: ours[part.field].offset)
    nests = [_field_nest(ours[name], theirs[name], part, size) for name, part in parts]
    for local_slot, remote_slot, count in _layer_runs(read.layer_names, local, remote):
        for nest, (name, _) in zip(nests, parts, strict=True):
            layer = Dim(count, ours[name].layer_stride, theirs[name].layer_stride)
            yield nest._replace(
                local=nest.local + local_slot * layer.local,
                remote=nest.remote + remote_slot * layer.remote,
                dims=(*nest.dims, layer),
            )


def _field_nest(mine: StridedField, other: StridedField, part: Interval, size: int) -> Nest:
    """A part of a field in slot 0: axes are matched by name, whatever their order in memory."""
    cut = mine.field.shard.axis if mine.field.shard else None
    their_stride = {
        axis.name: stride for axis, stride in zip(other.field.axes, other.strides, strict=True)
    }
    nest = Nest(mine.offset, other.offset, mine.field.dtype.itemsize, ())
    for axis, stride in zip(mine.field.axes, mine.strides, strict=True):
        dim = Dim(axis.extent, stride, their_stride[axis.name])
        if axis.name == cut:
            dim = dim._replace(extent=part.size)
            nest = nest._replace(
                local=nest.local + (part.start - held(mine.field).start) * dim.local,
                remote=nest.remote + (part.start - held(other.field).start) * dim.remote,
            )
        if axis.logical == "N":
            dim = dim._replace(extent=size)
            nest = nest._replace(token_strides=(dim.local, dim.remote))
        nest = nest._replace(dims=(*nest.dims, dim))
    return nest


def _layer_runs(
    names: Sequence[str], local: GroupCache, remote: GroupCache
) -> Iterator[tuple[int, int, int]]:
    """Layers whose slots follow each other on both sides, as (local slot, remote slot, count)."""
    slots = [(local.slots[name], remote.slots[name]) for name in names]
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != (slots[i - 1][0] + 1, slots[i - 1][1] + 1):
            yield (*slots[first], i - first)
            first = i


def _tracks(runs: Runs, pieces: Sequence[TokenPiece]) -> Iterator[Track]:
    """Runs, sorted by first and last piece, cut where those change."""
    changes = np.flatnonzero(np.diff(runs.piece) | np.diff(runs.last_piece)) + 1
    edges = [0, *changes.tolist(), len(runs.piece)]
    for first, stop in pairwise(edges):
        head, tail = pieces[runs.piece[first]], pieces[runs.last_piece[first]]
        yield Track(
            head.start,
            tail.start + tail.size,
            head.local_block,
            head.remote_block,
            slice(first, stop),
        )
