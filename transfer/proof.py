"""Proof: what a plan would hand to a transport, checked byte by byte without moving any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import numpy as np

from blockstride.checks import expect
from blockstride.layouts import StridedField
from blockstride.transfer.byte_ranges import Ranges, byte_ranges
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.peer_plan import PeerPlan
from blockstride.transfer.request import BlockIds, TransferRequest, check_blocks


@dataclass(frozen=True)
class Proof:
    """What was checked.

    Attributes:
        num_tokens: Tokens of the sequence that stood for all.
        descriptors: Pairs of byte ranges.
        nbytes: Bytes, each of them written exactly once.
    """

    num_tokens: int
    descriptors: int
    nbytes: int


def prove(
    local: EngineTransferInfo,
    local_rank: int,
    remote: EngineTransferInfo,
    peers: Sequence[PeerPlan],
) -> Proof:
    """Checks the lists and indices of a made-up request that ends at the last block of every pool.

    Every byte that the request needs is written, none twice, and none outside the fields of the
    blocks to fill. Nothing is read but fields of the blocks that the producer named, none twice: no
    padding, and no other block. What it needs of a staging area was written there before.

    Args:
        local: The reading engine.
        local_rank: Its rank.
        remote: The engine that is read from.
        peers: The plans to check.

    Raises:
        ValueError: A byte for which that does not hold; the message names rank, pool and offset.
    """
    areas = [peer.staging for peer in peers if peer.staging is not None]
    period = lcm(_span(local), _span(remote))
    num_tokens = min(period, _tokens_that_fit(local, remote, *areas))
    tables = [_last_blocks(info, num_tokens) for info in (local, remote)]
    mine, theirs = ([BlockIds(ids) for ids in table] for table in tables)
    request = TransferRequest(num_tokens, mine, theirs)
    check_blocks("local", local, num_tokens, request.local)
    check_blocks("remote", remote, num_tokens, request.remote)
    needed = _fields(local, local_rank, tables[0], num_tokens)
    written = []
    for peer in peers:
        reads, writes = _ends(peer, request)
        name, source = f"reads from rank {peer.remote_rank}", _by_pool([reads[0]])
        _expect_once(source, name)
        _expect_inside(source, _fields(remote, peer.remote_rank, tables[1]), name)
        for i, staged in enumerate(writes[:-1]):
            name, area = f"staging area of rank {peer.remote_rank}", _by_pool([staged])
            _expect_once(area, name)
            _expect_inside(_by_pool([_sources(needed, writes[i + 1], reads[i + 1])]), area, name)
        written.append(writes[-1])
    covered = _by_pool(written)
    _expect_once(covered, f"writes to rank {local_rank}")
    _expect_inside(covered, _fields(local, local_rank, tables[0]), f"writes to rank {local_rank}")
    _expect_inside(needed, covered, f"bytes that rank {local_rank} needs")
    lengths = [ranges.length for ranges in written]
    return Proof(num_tokens, sum(map(len, lengths)), int(sum(length.sum() for length in lengths)))


def _ends(peer: PeerPlan, request: TransferRequest) -> tuple[list[Ranges], list[Ranges]]:
    """What each step of a peer reads, and what it writes, in step."""
    spec = peer.read(request)
    indices = [step for step in (spec.pack, spec.wire, spec.convert) if step is not None]
    steps = list(zip(peer.steps, indices, strict=True))
    return (
        [byte_ranges(copy, step, "remote") for copy, step in steps],
        [byte_ranges(copy, step, "local") for copy, step in steps],
    )


class Spans(NamedTuple):
    """Byte ranges of one pool, ascending."""

    first: np.ndarray
    stop: np.ndarray

    def merged(self) -> Spans:
        """The same bytes as the fewest ranges."""
        stop = np.maximum.accumulate(self.stop)
        starts = np.flatnonzero(np.concatenate([[True], self.first[1:] > stop[:-1]]))
        return Spans(self.first[starts], stop[np.append(starts[1:], len(stop)) - 1])


def _by_pool(parts: Sequence[Ranges]) -> dict[int, Spans]:
    pool, first, length = (np.concatenate(column) for column in zip(*parts, strict=True))
    spans = {}
    for number in np.unique(pool).tolist():
        which = np.flatnonzero(pool == number)
        which = which[np.argsort(first[which], kind="stable")]
        spans[number] = Spans(first[which], first[which] + length[which])
    return spans


def _sources(needed: Mapping[int, Spans], writes: Ranges, reads: Ranges) -> Ranges:
    """Where the needed bytes among those that a step writes come from."""
    parts = []
    for number, (first, stop) in ((pool, spans.merged()) for pool, spans in needed.items()):
        which = np.flatnonzero(writes.pool == number)
        to, start, length = (column[which] for column in (writes.first, reads.first, writes.length))
        # pairs of a write and a needed span that meet
        low = np.searchsorted(stop, to, side="right")
        count = np.searchsorted(first, to + length) - low
        write = np.repeat(np.arange(len(which)), count)
        span = low[write] + np.arange(len(write)) - np.repeat(np.cumsum(count) - count, count)
        begin = np.maximum(to[write], first[span])
        end = np.minimum((to + length)[write], stop[span])
        parts.append(
            Ranges(reads.pool[which][write], start[write] + begin - to[write], end - begin)
        )
    return Ranges(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _expect_inside(inner: Mapping[int, Spans], outer: Mapping[int, Spans], name: str) -> None:
    for pool, spans in inner.items():
        expect(pool in outer, name, f"none in pool {pool}", len(spans.first))
        whole, part = outer[pool].merged(), spans.merged()
        at = np.maximum(np.searchsorted(whole.first, part.first, side="right") - 1, 0)
        wrong = (part.first < whole.first[at]) | (part.stop > whole.stop[at])
        expect(not wrong.any(), f"{name}, pool {pool}", "fields only", part.first[wrong][:4])


def _expect_once(spans: Mapping[int, Spans], name: str) -> None:
    for pool, ranges in spans.items():
        twice = ranges.first[1:][ranges.first[1:] < ranges.stop[:-1]]
        expect(not len(twice), f"{name}, pool {pool}", "no byte twice", twice[:4])


def _span(info: EngineTransferInfo) -> int:
    return info.block_size * info.cp_size


def _tokens_that_fit(*engines: EngineTransferInfo) -> int:
    """Tokens of one sequence of which every pool can hold all groups, the null block left alone."""
    fits = []
    for info in engines:
        for pool, count in enumerate(info.num_blocks):
            groups = info.groups if info.policy == "unified" else [info.groups[pool]]
            growing = sum(group.spec.has_tokens for group in groups)
            left = count - 1 - (len(groups) - growing)
            expect(left >= growing, f"num_blocks of {info.engine_id}", "enough for a proof", count)
            fits += [left // growing * _span(info)] if growing else []
    return min(fits, default=1)


def _last_blocks(info: EngineTransferInfo, num_tokens: int) -> list[list[int]]:
    """A table for every group, dealt from the last block of each pool down."""
    free = [count - 1 for count in info.num_blocks]
    tables = []
    for index, group in enumerate(info.groups):
        pool = 0 if info.policy == "unified" else index
        count = -(-num_tokens // _span(info)) if group.spec.has_tokens else 1
        tables.append([free[pool] - i for i in range(count)])
        free[pool] -= count
    return tables


def _fields(
    info: EngineTransferInfo,
    rank: int,
    tables: Sequence[Sequence[int]],
    num_tokens: int | None = None,
) -> dict[int, Spans]:
    """Bytes of all fields of a rank's layers in the blocks of a sequence.

    Args:
        info: The engine.
        rank: Its rank.
        tables: Blocks of each group.
        num_tokens: None for whole blocks, else what a sequence of so many tokens needs of them.
    """
    parts = []
    for index, group in info.rank_cache(rank).groups.items():
        ids, placement = np.array(tables[index]), group.placement
        block, rest = ids, np.zeros(len(ids), dtype=np.int64)
        if group.tokens is not None:
            tokens = np.arange(len(ids) * _span(info))
            if num_tokens is not None:
                window = group.spec.window or num_tokens + 1
                tokens = tokens[max(0, num_tokens + 1 - window) : num_tokens]
            held = group.tokens.positions(tokens)
            block, rest = ids[held // placement.block_size], held % placement.block_size
        kernel, token = np.divmod(rest, placement.block_size // placement.kernel_blocks)
        block = block * placement.kernel_blocks + kernel
        for placed in placement.fields:
            first, length = _element_runs(placed)
            at = block * placed.block_stride + token * _token_stride(placed)
            for slot in group.slots.values():
                start = (at[:, None] + first + slot * placed.layer_stride).ravel()
                pool = np.full(len(start), group.pool)
                parts.append(Ranges(pool, start, np.full(len(start), length)))
    return _by_pool(parts)


def _token_stride(placed: StridedField) -> int:
    axes = zip(placed.field.axes, placed.strides, strict=True)
    return next((stride for axis, stride in axes if axis.logical == "N"), 0)


def _element_runs(placed: StridedField) -> tuple[np.ndarray, int]:
    """First bytes and common length of the runs of one token (or state) of a field in block 0."""
    starts, length = np.array([placed.offset]), placed.field.dtype.itemsize
    axes = [
        (stride, axis.extent)
        for axis, stride in zip(placed.field.axes, placed.strides, strict=True)
        if axis.logical != "N"
    ]
    for stride, extent in sorted(axes):
        if stride == length and len(starts) == 1:
            length *= extent
        else:
            starts = (starts[:, None] + np.arange(extent) * stride).ravel()
    return starts, length
