"""Pairing: the plan of one reading rank, as reader and producer both make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int32

from blockstride.checks import expect
from blockstride.layouts import CacheSpec
from blockstride.transfer.connector.messages import PlanOptions
from blockstride.transfer.connector.settings import ConnectorSettings
from blockstride.transfer.cost_model import CostModel
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.group_plan import GroupPlan
from blockstride.transfer.mapping import expected_readers
from blockstride.transfer.peer_plan import PeerPlan, StagingSize, staging_area
from blockstride.transfer.plan import EngineTransferPlan, plan_transfer
from blockstride.transfer.request import BlockIds, needed_tokens, periods


def plan_options(settings: ConnectorSettings) -> PlanOptions:
    """What a producer must know of a reader's settings."""
    model = settings.cost_model or CostModel()
    cost = (model.descriptor_seconds, model.wire_rate, model.convert_rate)
    return PlanOptions(
        settings.strategy, settings.max_tokens, settings.max_states, cost, settings.cast
    )


@dataclass(frozen=True)
class Pairing:
    """How one rank reads from an engine.

    Attributes:
        reader: The reading engine.
        plan: The plan of its rank. Where dtypes differ, `plan.local` is a staging area: the
            reader's cache in the producer's dtypes, with blocks for one sequence.
    """

    reader: EngineTransferInfo
    plan: EngineTransferPlan

    @property
    def rank(self) -> int:
        """The reading rank."""
        return self.plan.local_rank

    @property
    def casts(self) -> bool:
        """Whether what arrives must be cast."""
        return self.plan.local is not self.reader

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """For each remote rank, how many ranks of the reading engine say that they are done.

        Ranks that nobody needs to read are told so by one reader all the same: they can't know.
        """
        return tuple(max(1, count) for count in self._counts)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Remote ranks that this rank talks to about every request."""
        unread = [rank for rank, count in enumerate(self._counts) if count == 0]
        told = unread[self.rank :: self.reader.world_size]
        return tuple(sorted({*self.plan.mapping.all_source_ranks, *told}))

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        return expected_readers(self.plan.local, self.plan.remote)

    def peers(self, remote_rank: int) -> list[PeerPlan]:
        """The plans of one remote rank."""
        return [peer for peer in self.plan.peers if peer.remote_rank == remote_rank]

    def targets(self, local: Sequence[BlockIds]) -> list[BlockIds]:
        """The blocks that the plan fills for a request: its own, or those of the staging area.

        Raises:
            ValueError: More blocks than the staging area has.
        """
        if not self.casts:
            return list(local)
        area = self.plan.local
        used = dict.fromkeys(range(len(area.num_blocks)), 1)
        targets = []
        for index, blocks in enumerate(local):
            pool = 0 if area.policy == "unified" else index
            count, first = len(blocks.ids), used[pool]
            left = area.num_blocks[pool] - first
            expect(count <= left, "staging blocks", f"at most {left} for group {index}", count)
            targets.append(BlockIds(np.arange(first, first + count), blocks.first))
            used[pool] += count
        return targets

    def invalid_blocks(
        self, num_tokens: int, local: Sequence[BlockIds], confirmed: set[int]
    ) -> list[Int32[np.ndarray, " blocks"]]:
        """Local blocks of every group whose bytes may not all have arrived.

        Args:
            num_tokens: Tokens of the sequence.
            local: Blocks to fill.
            confirmed: Remote ranks that have said that their lease held.
        """
        if self.casts:  # what has arrived is not where it belongs yet
            done = set(self.plan.mapping.all_source_ranks) <= confirmed
            return [blocks.ids[:0] if done else blocks.ids for blocks in local]
        found = [np.zeros(len(blocks.ids), dtype=np.bool_) for blocks in local]
        for peer in self.plan.peers:
            if peer.remote_rank not in confirmed:
                for group in (peer.convert or peer.wire).groups:
                    blocks = local[group.read.local_group]
                    found[group.read.local_group] |= _is_written(group, num_tokens, blocks)
        return [blocks.ids[wrong] for blocks, wrong in zip(local, found, strict=True)]


def _is_written(plan: GroupPlan, num_tokens: int, local: BlockIds) -> Bool[np.ndarray, " blocks"]:
    """Which blocks of a request a group plan writes to."""
    if plan.span == 0:
        return np.ones(len(local.ids), dtype=np.bool_)
    split, step = plan.local.split, plan.local.blocks_per_period
    written = np.zeros(len(local.ids) * split, dtype=np.bool_)
    tokens = needed_tokens(plan, num_tokens, local)
    for track in plan.tracks:
        span = periods(plan, track, tokens)
        first = span.start * step + track.local_block - local.first * split
        written[first : first + len(span) * step : step] = True
    return np.any(written.reshape(-1, split), axis=1, keepdims=True)[:, 0]


def pair(
    reader: EngineTransferInfo, rank: int, producer: EngineTransferInfo, options: PlanOptions
) -> Pairing:
    """Plans all reads of a rank from an engine.

    Raises:
        ValueError: Caches of another model, or dtypes that differ without leave to cast.
    """
    size = StagingSize(options.num_tokens, options.num_states)
    local = reader
    if options.cast and _dtypes(reader.specs) != _dtypes(producer.specs):
        local = _in_dtypes_of(producer, reader, size)
    plan = plan_transfer(
        local,
        rank,
        producer,
        strategy=options.strategy,
        cost_model=CostModel(*options.cost),
        num_tokens=options.num_tokens,
        num_states=options.num_states,
    )
    return Pairing(reader, plan)


def _dtypes(specs: Mapping[str, CacheSpec]) -> dict[tuple[str, str], object]:
    return {
        (name, field.name): field.dtype
        for name, spec in specs.items()
        for segment in spec.segments
        for field in segment.fields
    }


def _in_dtypes_of(
    producer: EngineTransferInfo, reader: EngineTransferInfo, size: StagingSize
) -> EngineTransferInfo:
    """A staging area that lies as the reader's cache does, but for the width of elements."""
    dtypes = _dtypes(producer.specs)
    specs: dict[str, CacheSpec] = {}
    for name, spec in reader.specs.items():
        segments = tuple(
            replace(
                segment,
                fields=tuple(
                    replace(field, dtype=dtypes.get((name, field.name), field.dtype))
                    for field in segment.fields
                ),
            )
            for segment in spec.segments
        )
        specs[name] = replace(spec, segments=segments)
    info = replace(reader, specs=specs)
    groups, ours = ([group.layer_names for group in e.groups] for e in (info, reader))
    expect(groups == ours, f"dtypes of {producer.engine_id}", f"ones that group as {ours}", groups)
    return staging_area(info, size)
