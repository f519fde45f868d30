"""Mapping: which interval of which field a rank reads from which remote rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from blockstride.layouts import Field, Interval, Shard
from blockstride.transfer.engine_info import EngineTransferInfo, RankCoordinates
from blockstride.transfer.rank_cache import GroupCache
from blockstride.transfer.tokens import common_pieces


class FieldRead(NamedTuple):
    """An interval of a field's cut axis, in global coordinates.

    Attributes:
        field: Name of the field.
        interval: Elements of the axis; `WHOLE` for a field that every rank holds.
    """

    field: str
    interval: Interval


@dataclass(frozen=True)
class GroupRead:
    """What a local group reads from one group of one remote rank.

    Attributes:
        remote_rank: The owner.
        local_group: Group number here.
        remote_group: Group number there.
        layer_names: Layers that both groups have.
        fields: The intervals, none of which another owner is asked for.
    """

    remote_rank: int
    local_group: int
    remote_group: int
    layer_names: tuple[str, ...]
    fields: tuple[FieldRead, ...]


@dataclass(frozen=True)
class TPMapping:
    """Who gives what to one local rank.

    Attributes:
        reads: One entry for each (remote rank, local group, remote group) that shares something.
    """

    reads: tuple[GroupRead, ...]

    @property
    def all_source_ranks(self) -> tuple[int, ...]:
        """All remote ranks that are read from: those to shake hands with, and to notify."""
        return tuple(sorted({read.remote_rank for read in self.reads}))


WHOLE = Interval(0, 1)
"""Stands for a field that is not cut."""


def held(field: Field) -> Interval:
    """The interval of a field's cut axis that a rank holds; `WHOLE` where nothing is cut."""
    return field.shard.interval if field.shard else WHOLE


@lru_cache(maxsize=4096)
def _held_by_ranks(shard: Shard, tp_size: int, field: str) -> tuple[Interval, ...]:
    """What each rank holds of a field of the whole model."""
    return tuple(shard.of_rank(rank, tp_size, field).interval for rank in range(tp_size))


class _Share(NamedTuple):
    """An interval of a field, and the tensor-parallel ranks that hold all of it."""

    field: str
    interval: Interval
    owners: tuple[int, ...]


def _shares(group: GroupCache, tp_size: int) -> Iterator[_Share]:
    """Cuts what a rank holds where the parts of `tp_size` remote ranks begin and end."""
    for field in group.placement.page.fields:
        mine, theirs = held(field), (WHOLE,) * tp_size
        if field.shard is not None:
            theirs = _held_by_ranks(replace(field.shard, held=None), tp_size, field.name)
        edges = (edge for interval in theirs for edge in interval)
        cuts = sorted({*mine, *(edge for edge in edges if mine.start < edge < mine.stop)})
        for start, stop in pairwise(cuts):
            part = Interval(start, stop)
            owners = tuple(
                rank for rank, interval in enumerate(theirs) if interval.intersect(part) == part
            )
            yield _Share(field.name, part, owners)


def _token_owners(group: GroupCache, other: GroupCache, cp_size: int, cp: int) -> list[int]:
    """Remote context-parallel ranks to ask: all that share tokens, or any one that has the state.

    Args:
        group: The local group, of some context-parallel rank.
        other: The remote group, as any such rank holds it.
        cp_size: Number of remote ones.
        cp: Rank of the local one, by which states are spread.
    """
    if group.tokens is None or other.tokens is None:
        return [cp % cp_size]
    return [
        rank
        for rank in range(cp_size)
        if common_pieces(group.tokens, other.tokens._replace(cp_rank=rank))[1]
    ]


def compute_tp_mapping(
    local: EngineTransferInfo, local_rank: int, remote: EngineTransferInfo
) -> TPMapping:
    """Intersects what one rank holds with what every remote rank holds, and chooses owners.

    A part that one remote rank holds comes from there. A part that several hold comes from one of
    them, taken among ranks that are read from anyway if there are such, and spread by local rank.

    Args:
        local: The reading engine.
        local_rank: Its rank.
        remote: The engine that is read from, of the same model; see `expect_same_model`.
    """
    at = local.coordinates(local_rank)
    groups = local.rank_cache(local_rank).groups
    stages = [
        remote.rank_cache(remote.rank(RankCoordinates(0, pp=pp))).groups
        for pp in range(remote.pp_size)
    ]
    shares = {index: tuple(_shares(group, remote.tp_size)) for index, group in groups.items()}
    single = (share for cut in shares.values() for share in cut if len(share.owners) == 1)
    needed = {share.owners[0] for share in single}
    reads = []
    for index, group in groups.items():
        chosen: dict[int, list[FieldRead]] = {}
        for share in shares[index]:
            owners = [owner for owner in share.owners if owner in needed] or share.owners
            owner = owners[at.tp % len(owners)]
            chosen.setdefault(owner, []).append(FieldRead(share.field, share.interval))
        for pp, stage in enumerate(stages):
            for other in stage.values():
                layers = tuple(name for name in group.slots if name in other.slots)
                if not layers:
                    continue
                owners = _token_owners(group, other, remote.cp_size, at.cp)
                for cp, (tp, fields) in product(owners, chosen.items()):
                    rank = remote.rank(RankCoordinates(tp, cp, pp))
                    reads.append(GroupRead(rank, index, other.index, layers, tuple(fields)))
    return TPMapping(tuple(reads))


def expected_readers(reader: EngineTransferInfo, producer: EngineTransferInfo) -> tuple[int, ...]:
    """For each rank of a producer, the number of ranks of a reading engine that read from it.

    Each of them says when it is done, whatever a single request moves.
    """
    counts = [0] * producer.world_size
    for rank in range(reader.world_size):
        for source in compute_tp_mapping(reader, rank, producer).all_source_ranks:
            counts[source] += 1
    return tuple(counts)
