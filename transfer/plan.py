"""A plan: how one rank reads from an engine; everything that does not depend on the request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from blockstride.checks import expect
from blockstride.transfer.compatibility import expect_same_model
from blockstride.transfer.cost_model import CostModel
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.mapping import GroupRead, TPMapping, compute_tp_mapping
from blockstride.transfer.peer_plan import (
    PeerPlan,
    ReadSpec,
    StagingSize,
    Strategy,
    StrategyChoice,
    plan_peer,
)
from blockstride.transfer.proof import Proof, prove
from blockstride.transfer.report import TransferReport, report
from blockstride.transfer.request import TransferRequest, check_blocks


@dataclass(frozen=True)
class EngineTransferPlan:
    """How one local rank reads from a remote engine.

    Attributes:
        local: The reading engine.
        local_rank: Its rank.
        remote: The engine that is read from.
        mapping: Who gives what.
        peers: One plan for each remote rank and strategy.
    """

    local: EngineTransferInfo
    local_rank: int
    remote: EngineTransferInfo
    mapping: TPMapping
    peers: tuple[PeerPlan, ...]

    def reads(self, request: TransferRequest) -> tuple[ReadSpec, ...]:
        """What to read for a request, for each of `peers`.

        Raises:
            ValueError: Block ids that can't be right; nothing is computed before all are checked.
        """
        num_tokens, has_states = request.num_tokens, request.has_states
        check_blocks("local", self.local, num_tokens, request.local, has_states)
        check_blocks("remote", self.remote, num_tokens, request.remote, has_states)
        return tuple(peer.read(request) for peer in self.peers)

    def report(self, num_tokens: int) -> TransferReport:
        """What crosses the wire for a sequence, before anything moves."""
        return report([peer.wire for peer in self.peers], num_tokens)

    def prove(self) -> Proof:
        """Checks that every byte is written exactly once and read from where its owner keeps it.

        Raises:
            ValueError: A byte for which that does not hold; see `blockstride.transfer.proof`.
        """
        return prove(self.local, self.local_rank, self.remote, self.peers)


def plan_transfer(
    reader: EngineTransferInfo,
    rank: int,
    producer: EngineTransferInfo,
    *,
    strategy: StrategyChoice = "direct",
    cost_model: CostModel | None = None,
    num_tokens: int = 8192,
    num_states: int = 1,
) -> EngineTransferPlan:
    """Plans all that one rank of an engine reads from another engine of the same model.

    Args:
        reader: The reading engine.
        rank: Its rank.
        producer: The engine that is read from.
        strategy: One for all groups, or `auto`: for each group the one with the least predicted
            time, the sum over its remote ranks.
        cost_model: What predicts; the default one when None.
        num_tokens: Length of the sequence that `auto` decides for, and the longest that staging
            areas hold.
        num_states: Most states of a request in a group without tokens that staging areas hold.

    Raises:
        ValueError: Caches of another model, a rank that the reader doesn't have, or so many runs
            that int32 can't number them.
    """
    known = get_args(StrategyChoice)
    expect(strategy in known, "strategy", f"one of {known}", repr(strategy))
    expect_same_model(reader, producer)
    mapping = compute_tp_mapping(reader, rank, producer)
    size = StagingSize(num_tokens, num_states)

    def plan(chosen: Strategy, reads: Iterable[GroupRead]) -> list[PeerPlan]:
        by_peer: dict[int, list[GroupRead]] = {}
        for read in reads:
            by_peer.setdefault(read.remote_rank, []).append(read)
        return [
            plan_peer(chosen, by_peer[peer], reader, rank, producer, size)
            for peer in sorted(by_peer)
        ]

    if strategy != "auto":
        peers = plan(strategy, mapping.reads)
        return EngineTransferPlan(reader, rank, producer, mapping, tuple(peers))
    cost_model = cost_model or CostModel()
    chosen: dict[Strategy, list[GroupRead]] = {}
    for group in sorted({read.local_group for read in mapping.reads}):
        reads = [read for read in mapping.reads if read.local_group == group]
        seconds: dict[Strategy, float] = {}
        for name in get_args(Strategy):
            try:
                peers = plan(name, reads)
            except ValueError:  # see plan_peer, and PeerPlan for the range of int32
                continue
            seconds[name] = sum(cost_model.seconds(peer, num_tokens) for peer in peers)
        expect(bool(seconds), f"group {group}", "a strategy that can be used", "none")
        chosen.setdefault(min(seconds, key=seconds.__getitem__), []).extend(reads)
    peers = [peer for name, reads in chosen.items() for peer in plan(name, reads)]
    return EngineTransferPlan(reader, rank, producer, mapping, tuple(peers))
