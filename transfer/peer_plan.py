"""A peer plan: the steps that bring one remote rank's bytes here, by one of three strategies.

`direct` copies the runs that both sides have in common. `pages` reads the remote rank's whole pages
into a staging area of their own shape, and converts them here. `pack` converts them at the source,
in a staging area of the local shape, and reads long runs. A staging area is one more engine to the
planner, so every step is a copy plan like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from blockstride.checks import expect
from blockstride.layouts import NULL_BLOCK
from blockstride.transfer.copy_plan import MAX_INDICES, CopyPlan, Indices
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.group_plan import plan_group
from blockstride.transfer.mapping import FieldRead, GroupRead, held
from blockstride.transfer.request import BlockIds, TransferRequest, needed_tokens

Strategy = Literal["direct", "pages", "pack"]
StrategyChoice = Literal["direct", "pages", "pack", "auto"]
"""A strategy for all groups, or `auto`: for each group the one predicted to be fastest."""


class StagingSize(NamedTuple):
    """The longest request that a staging area holds.

    Attributes:
        num_tokens: Tokens of its sequence.
        num_states: States that each group without tokens lists: 1, and more with snapshots.
    """

    num_tokens: int
    num_states: int = 1


class ReadSpec(NamedTuple):
    """What to do for one request with one peer, step by step.

    Attributes:
        remote_rank: Whom to read from.
        wire: What crosses the wire.
        pack: What the producer copies into its staging area before that.
        convert: What the reader copies out of its own after that.
    """

    remote_rank: int
    wire: Indices
    pack: Indices | None = None
    convert: Indices | None = None


@dataclass(frozen=True)
class PeerPlan:
    """The steps of one strategy, for the groups that use it.

    Attributes:
        remote_rank: The rank that is read from.
        strategy: `direct`, `pages` or `pack`.
        wire: What crosses the wire, in fewer descriptors than int32 can number.
        pack: Remote pools to the staging area at the source, for `pack`.
        convert: Staging area here to the local pools, for `pages`.
        staging: The shape of the staging area, that of one rank of an engine.
    """

    remote_rank: int
    strategy: Strategy
    wire: CopyPlan
    pack: CopyPlan | None = None
    convert: CopyPlan | None = None
    staging: EngineTransferInfo | None = None

    def __post_init__(self) -> None:
        name, count = f"descriptors prepared for rank {self.remote_rank}", self.wire.num_descriptors
        expect(count < MAX_INDICES, name, f"fewer than {MAX_INDICES}", count)

    @property
    def steps(self) -> tuple[CopyPlan, ...]:
        """All copies, in order."""
        return tuple(step for step in (self.pack, self.wire, self.convert) if step is not None)

    def read(self, request: TransferRequest) -> ReadSpec:
        """Index arrays of a request, for every step.

        Raises:
            ValueError: A block that the reader wants is not among the producer's, or the sequence
                does not fit the staging area.
        """
        if self.staging is None:
            return ReadSpec(self.remote_rank, self.wire.indices(request))
        staged = self._staged_blocks(request)
        into, out_of = replace(request, local=staged), replace(request, remote=staged)
        if self.pack is not None:
            wire, pack = self.wire.indices(out_of), self.pack.indices(into)
            return ReadSpec(self.remote_rank, wire, pack=pack)
        assert self.convert is not None, "a staging area belongs to pack or to pages"
        wire, convert = self.wire.indices(into), self.convert.indices(out_of)
        return ReadSpec(self.remote_rank, wire, convert=convert)

    def _staged_blocks(self, request: TransferRequest) -> list[BlockIds]:
        """Blocks of the staging area, one after the other, for what the request needs."""
        assert self.staging is not None, "only with a staging area"
        info = self.staging
        tables = [BlockIds([]) for _ in info.groups]
        used = dict.fromkeys(range(len(info.num_blocks)), NULL_BLOCK + 1)
        final = self.convert or self.wire
        for plan in final.groups:
            index = plan.read.remote_group
            local, pool = request.local[plan.read.local_group], plan.remote.pool
            first, count = 0, len(local.ids)
            if plan.span:
                span = info.block_size * info.cp_size
                tokens = needed_tokens(plan, request.num_tokens, local)
                first = tokens.start // span
                count = -(-tokens.stop // span) - first if tokens else 0
            if count <= len(tables[index].ids):
                continue
            name, left = "staging blocks", info.num_blocks[pool] - used[pool]
            expect(
                count <= left, name, f"{count} for group {index}", f"{left} left of a fixed area"
            )
            tables[index] = BlockIds(np.arange(used[pool], used[pool] + count), first)
            used[pool] += count
        return tables


def plan_peer(
    strategy: Strategy,
    reads: Sequence[GroupRead],
    local: EngineTransferInfo,
    local_rank: int,
    remote: EngineTransferInfo,
    staging: StagingSize,
) -> PeerPlan:
    """Plans the steps of one strategy.

    Args:
        strategy: Which.
        reads: What to read, all from one remote rank.
        local: The reading engine.
        local_rank: Its rank.
        remote: The engine that is read from.
        staging: What a staging area must hold.

    Raises:
        ValueError: Packing for a reader whose tokens several producers hold, since each packs whole
            blocks of the reader.
    """
    rank = reads[0].remote_rank
    if strategy == "direct":
        wire = _copy(reads, local, local_rank, remote, rank)
        return PeerPlan(rank, strategy, wire)
    if strategy == "pack":
        dealt = [(info.cp_size, info.cp_interleave) for info in (local, remote)]
        alike = remote.cp_size == 1 or dealt[0] == dealt[1]
        expect(alike, "pack", f"tokens dealt to {dealt[0]} ranks and in runs as here", dealt[1])
        area = staging_area(local, staging)
        pack = _copy(reads, area, local_rank, remote, rank)
        here = [replace(read, remote_group=read.local_group) for read in reads]
        wire = _copy(here, local, local_rank, area, local_rank)
        return PeerPlan(rank, strategy, wire, pack=pack, staging=area)
    area = staging_area(remote, staging)
    groups = remote.rank_cache(rank).groups
    whole = [
        replace(
            read,
            local_group=read.remote_group,
            fields=tuple(
                FieldRead(field.name, held(field))
                for field in groups[read.remote_group].placement.page.fields
            ),
        )
        for read in reads
    ]
    wire = _copy(whole, area, rank, remote, rank)
    convert = _copy(reads, local, local_rank, area, rank)
    return PeerPlan(rank, strategy, wire, convert=convert, staging=area)


def staging_area(info: EngineTransferInfo, size: StagingSize) -> EngineTransferInfo:
    """The same engine with as many blocks of its own as one sequence needs."""
    span = info.block_size * info.cp_size
    blocks = [
        -(-size.num_tokens // span) if group.spec.has_tokens else size.num_states
        for group in info.groups
    ]
    counts = [sum(blocks)] if info.policy == "unified" else blocks
    return replace(
        info,
        engine_id=f"staging of {info.engine_id}",
        num_blocks=tuple(count + 1 for count in counts),
    )


def _copy(
    reads: Sequence[GroupRead],
    local: EngineTransferInfo,
    local_rank: int,
    remote: EngineTransferInfo,
    remote_rank: int,
) -> CopyPlan:
    ours, theirs = local.rank_cache(local_rank).groups, remote.rank_cache(remote_rank).groups
    return CopyPlan(
        reads[0].remote_rank,
        tuple(
            plan_group(read, ours[read.local_group], theirs[read.remote_group]) for read in reads
        ),
    )
