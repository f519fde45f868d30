"""Writing: what a producing rank does for a reader's claim, beyond granting it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic

from blockstride.transfer.connector.description import check_regions
from blockstride.transfer.connector.errors import TransferError
from blockstride.transfer.connector.leases import Lease, LeaseTable, Reader
from blockstride.transfer.connector.local_rank import LocalRank, agent_prefix
from blockstride.transfer.connector.messages import Target
from blockstride.transfer.connector.pairing import Pairing
from blockstride.transfer.connector.parts import Region
from blockstride.transfer.connector.posting import PreparedCopy
from blockstride.transfer.connector.staging import StagingArea, copy_here
from blockstride.transfer.peer_plan import PeerPlan
from blockstride.transfer.request import TransferRequest


@dataclass(eq=False)
class Session:
    """A reader that has introduced itself.

    Attributes:
        reader: Its engine and rank.
        pairing: Its plan.
        routes: What it reads from this rank, with the staging areas to pack into.
        sequence: Number of its last message.
        last_seen: When that came.
        written: Lists to write with, by where.
        agent_name: Its agent, once something was written to it.
        claims: Claims that are being packed or written for it.
        is_over: Whether it has ended; its memory goes back with the last claim.
    """

    reader: Reader
    pairing: Pairing
    routes: list[tuple[PeerPlan, StagingArea | None]]
    sequence: int
    last_seen: float
    written: dict[tuple[Region, ...], list[PreparedCopy]] = field(default_factory=dict)
    agent_name: str = ""
    claims: int = 0
    is_over: bool = False

    def release_areas(self) -> None:
        """Gives the staging areas back."""
        for _, area in self.routes:
            if area is not None:
                area.release()
        self.routes = []


class Writer:
    """Packs, and writes where readers ask for it.

    Args:
        local: The rank.
        leases: What it holds.
    """

    def __init__(self, local: LocalRank, leases: LeaseTable) -> None:
        self._local, self._leases = local, leases
        self._writing: dict[tuple[Reader, str], asyncio.Event] = {}

    async def pack(self, session: Session, request: TransferRequest) -> None:
        """Brings a request into the staging areas that its reader reads from."""
        for peer, area in session.routes:
            if area is not None and peer.pack is not None:
                pack = peer.read(request).pack
                assert pack is not None, "a plan that packs has indices to pack"
                local = self._local
                await local.copy(copy_here, peer.pack, pack, area.storages, local.pools)

    async def write(
        self, session: Session, target: Target, lease: Lease, request: TransferRequest
    ) -> None:
        """Writes a request to its reader, unless it is stopped; the lease lasts as long."""
        key = (session.reader, lease.request_id)
        if key in self._writing:
            raise ValueError("request_id: expected one that is not being written, got one that is")
        lists = self._lists(session, target)
        stop = self._writing[key] = asyncio.Event()
        touching: set[asyncio.Future[None]] = set()
        lease.writing += 1
        try:
            await self.pack(session, request)
            for (peer, _), prepared in zip(session.routes, lists, strict=True):
                spec = peer.read(request)
                wanted = lambda: not stop.is_set()  # noqa: E731
                await self._local.move("WRITE", prepared, spec.wire, touching, wanted)
            if stop.is_set():
                raise TransferError("stopped by its reader")
            # while it still counts as being written, as that may have taken longer than a lease
            self._leases.finish(lease.request_id, lease.epoch, session.reader, monotonic())
        finally:
            while touching:
                await asyncio.wait(touching)
            lease.writing -= 1
            del self._writing[key]

    def _lists(self, session: Session, target: Target) -> list[PreparedCopy]:
        """The lists to write with, made at a reader's first request of the kind."""
        pairing, local = session.pairing, self._local
        if any(peer.convert is not None for peer, _ in session.routes):
            raise ValueError("strategy: expected direct or pack for what is written, got pages")
        regions = check_regions(pairing.plan.local, pairing.rank, target.regions)
        key = tuple(target.regions)
        if key not in session.written:
            name = local.agent.connect(target.metadata, agent_prefix(*session.reader))
            if session.agent_name:  # one session is one user
                local.agent.disconnect(session.agent_name)
            session.agent_name = name
            session.written[key] = [
                local.agent.prepare(
                    peer.wire,
                    "remote",
                    area.registration.regions if area else local.regions,
                    name,
                    regions,
                )
                for peer, area in session.routes
            ]
        return session.written[key]

    def stop(self, reader: Reader, request_id: str) -> bool:
        """Lets no further chunk of a request be written; returns whether any still is."""
        stop = self._writing.get((reader, request_id))
        if stop is not None:
            stop.set()
        return stop is not None

    def stop_all(self) -> None:
        """Lets no further chunk be written."""
        for stop in self._writing.values():
            stop.set()
