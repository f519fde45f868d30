"""A session with a reader: what a producing rank keeps for one rank that reads from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from blockstride.transfer.connector.description import engine_of
from blockstride.transfer.connector.leases import ReaderRank
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.messages import Introduction, Region
from blockstride.transfer.connector.pairing import Pairing, pair
from blockstride.transfer.connector.staging import StagingArea
from blockstride.transfer.nixl import Peer, PreparedCopy, TransferAgent
from blockstride.transfer.peer_plan import PeerPlan


@dataclass(eq=False)
class ReaderSession:
    """A reader that has introduced itself.

    Attributes:
        reader: Its engine and rank.
        pairing: Its plan.
        routes: What it reads from this rank, with the staging areas to pack into.
        sequence: Number of its last message.
        last_seen: When that came.
        written: Lists to write with, by where.
        agent: Its agent, once something was written to it.
        claims: Claims that are being packed or written for it.
        is_over: Whether it has ended; its memory goes back with the last claim.
    """

    reader: ReaderRank
    pairing: Pairing
    routes: list[tuple[PeerPlan, StagingArea | None]]
    sequence: int
    last_seen: float
    written: dict[tuple[Region, ...], list[PreparedCopy]] = field(default_factory=dict)
    agent: Peer | None = None
    claims: int = 0
    is_over: bool = False

    @classmethod
    def begin(cls, message: Introduction, local: LocalRank) -> ReaderSession:
        """Plans for a reader, with staging areas where the plan packs.

        Raises:
            ValueError: A reader that can't be planned for, or staging areas above the limit.
            TypeError: A dtype that a cache can't hold.
        """
        info = engine_of(message.engine, local.info)
        info.coordinates(message.rank)
        pairing = pair(info, message.rank, local.info, message.options)
        session = cls((info.engine_id, message.rank), pairing, [], message.sequence, monotonic())
        try:
            for peer in pairing.peers(local.rank):
                area = None
                if peer.pack is not None and peer.staging is not None:
                    area = local.area(peer.staging, message.rank)
                session.routes.append((peer, area))
        except ValueError:
            session.release_areas()
            raise
        return session

    def release_areas(self) -> None:
        """Gives the staging areas back."""
        for _, area in self.routes:
            if area is not None:
                area.release()
        self.routes = []

    def give_back(self, agent: TransferAgent) -> None:
        """Frees what the session holds, once it is over and its last claim has ended."""
        if self.is_over and self.claims == 0:
            self.release_areas()
            if self.agent is not None:
                agent.disconnect(self.agent)
                self.agent = None
