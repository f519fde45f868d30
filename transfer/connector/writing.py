"""Writing: what a producing rank does for a reader's claim, beyond granting it."""

from __future__ import annotations

import asyncio
from time import monotonic

from blockstride.transfer.connector.description import check_regions
from blockstride.transfer.connector.leases import Lease, LeaseTable, ReaderRank
from blockstride.transfer.connector.local_rank import LocalRank, agent_prefix
from blockstride.transfer.connector.messages import PushTarget
from blockstride.transfer.connector.reader_session import ReaderSession
from blockstride.transfer.connector.staging import copy_here
from blockstride.transfer.errors import AbortedError
from blockstride.transfer.nixl import PreparedCopy
from blockstride.transfer.peer_plan import ReadSpec
from blockstride.transfer.request import TransferRequest

Work = tuple[list[ReadSpec | None], list[PreparedCopy] | None]
"""Index arrays of each route, None where this rank moves nothing; and the lists to write them with,
None where the reader reads."""


class Writer:
    """Packs, and writes where readers ask for it.

    Args:
        local: The rank.
        leases: What it holds.
    """

    def __init__(self, local: LocalRank, leases: LeaseTable) -> None:
        self._local, self._leases = local, leases
        self._writing: dict[tuple[ReaderRank, str], asyncio.Event] = {}

    def work(
        self,
        session: ReaderSession,
        target: PushTarget | None,
        lease: Lease,
        request: TransferRequest,
    ) -> Work:
        """Plans what a claim takes.

        Args:
            session: Whose claim.
            target: Where to write; None where the reader reads.
            lease: What it claims.
            request: Its blocks.

        Raises:
            ValueError: Blocks that can't be planned for, or a request that is being written.
            TransferError: Memory of the reader that NIXL can't reach.
        """
        if target is not None and (session.reader, lease.request_id) in self._writing:
            name = repr(lease.request_id)
            raise ValueError(f"request_id: expected one that isn't being written, got {name}")
        moves = [target is not None or peer.pack is not None for peer, _ in session.routes]
        specs = [
            peer.read(request) if is_moved else None
            for (peer, _), is_moved in zip(session.routes, moves, strict=True)
        ]
        return specs, None if target is None else self._lists(session, target)

    async def carry_out(self, session: ReaderSession, lease: Lease, work: Work) -> None:
        """Packs a request, and writes it unless it is stopped; the lease lasts as long."""
        specs, lists = work
        if lists is None:
            await self._pack(session, specs)
            return
        key = (session.reader, lease.request_id)
        stop = self._writing[key] = asyncio.Event()
        touching: set[asyncio.Future[None]] = set()
        lease.writing += 1
        try:
            await self._pack(session, specs)
            for spec, prepared in zip(specs, lists, strict=True):
                assert spec is not None, "all that is written is planned"
                await self._local.move("WRITE", prepared, spec.wire, touching, stop)
            if stop.is_set():
                raise AbortedError("stopped by its reader")
            # while it still counts as being written, as that may have taken longer than a lease
            self._leases.finish(lease.request_id, lease.epoch, session.reader, monotonic())
        finally:
            while touching:
                await asyncio.wait(touching)
            lease.writing -= 1
            del self._writing[key]

    async def _pack(self, session: ReaderSession, specs: list[ReadSpec | None]) -> None:
        """Brings a request into the staging areas that are read or written from."""
        local = self._local
        for (peer, area), spec in zip(session.routes, specs, strict=True):
            if area is not None and peer.pack is not None:
                assert spec is not None, "all that is packed is planned"
                assert spec.pack is not None, "a plan that packs has indices to pack"
                await local.copy(copy_here, peer.pack, spec.pack, area.storages, local.pools)

    def _lists(self, session: ReaderSession, target: PushTarget) -> list[PreparedCopy]:
        """The lists to write with, made at a reader's first request of the kind."""
        pairing, local = session.pairing, self._local
        if any(peer.convert is not None for peer, _ in session.routes):
            raise ValueError("strategy: expected direct or pack for what is written, got pages")
        theirs = check_regions(pairing.plan.local, pairing.rank, target.regions)
        key = tuple(target.regions)
        if key not in session.written:
            agent = local.agent.connect(target.metadata, agent_prefix(*session.reader))
            if session.agent is not None:  # one session is one user
                local.agent.disconnect(session.agent)
            session.agent = agent
            session.written[key] = [
                local.agent.prepare(
                    peer.wire, "remote", area.memory if area else local.memory, agent, theirs
                )
                for peer, area in session.routes
            ]
        return session.written[key]

    def stop(self, reader: ReaderRank, request_id: str) -> bool:
        """Lets no further chunk of a request be written; returns whether any still is."""
        stop = self._writing.get((reader, request_id))
        if stop is not None:
            stop.set()
        return stop is not None

    def stop_all(self) -> None:
        """Lets no further chunk be written."""
        for stop in self._writing.values():
            stop.set()
