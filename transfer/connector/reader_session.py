"""A session with a reader: what a producing rank does for one rank that reads from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from blockstride.transfer.connector.description import check_memory, engine_of, tables_of
from blockstride.transfer.connector.leases import Lease, LeaseTable, ReaderRank
from blockstride.transfer.connector.local_rank import LocalRank, agent_prefix
from blockstride.transfer.connector.loop import Tasks
from blockstride.transfer.connector.messages import Claim, Introduction, PushTarget
from blockstride.transfer.connector.pairing import Pairing, pair
from blockstride.transfer.connector.staging import Area, copy_here
from blockstride.transfer.errors import AbortedError, LeaseExpiredError, as_failure
from blockstride.transfer.nixl import Peer, PreparedCopy
from blockstride.transfer.peer_plan import PeerPlan, ReadSpec
from blockstride.transfer.request import TransferRequest, check_blocks


class Work(NamedTuple):
    """What a claim takes.

    Attributes:
        lease: What is claimed.
        specs: Index arrays of each route; None where this rank moves nothing.
        lists: What each route is written with; None where the reader reads.
    """

    lease: Lease
    specs: list[ReadSpec | None]
    lists: list[PreparedCopy] | None


@dataclass(eq=False)
class ReaderSession:
    """A reader that has introduced itself: its claims are granted, packed, and written.

    Attributes:
        local: This rank.
        leases: What it holds.
        reader: The reader's engine and rank.
        pairing: Its plan.
        sequence: Number of its last message.
        last_seen: When that came.
        routes: What it reads from this rank, with the staging areas to pack into.
        target: Where to write, once something was.
        lists: What that is written with.
        agent: The reader's agent, for the same.
        claims: Claims that are being packed or written.
        is_over: Whether it has ended; its memory goes back with the last claim.
    """

    local: LocalRank
    leases: LeaseTable
    reader: ReaderRank
    pairing: Pairing
    sequence: int
    last_seen: float
    routes: list[tuple[PeerPlan, Area | None]] = field(default_factory=list)
    target: PushTarget | None = None
    lists: list[PreparedCopy] = field(default_factory=list)
    agent: Peer | None = None
    claims: int = 0
    is_over: bool = False

    @classmethod
    def begin(cls, message: Introduction, local: LocalRank, leases: LeaseTable) -> ReaderSession:
        """Plans for a reader, with staging areas where the plan packs.

        Raises:
            ValueError: A reader that can't be planned for, or staging areas above the limit.
            TypeError: A dtype that a cache can't hold.
        """
        info = engine_of(message.engine, local.info)
        info.coordinates(message.rank)
        pairing = pair(info, message.rank, local.info, message.options)
        reader = (info.engine_id, message.rank)
        session = cls(local, leases, reader, pairing, message.sequence, monotonic())
        try:
            for peer in pairing.peers(local.rank):
                area = None
                if peer.pack is not None and peer.staging is not None:
                    area = local.staging(peer.staging, message.rank)
                session.routes.append((peer, area))
        except ValueError:
            session.end()
            raise
        return session

    @property
    def num_readers(self) -> int:
        """Ranks of the reading engine that read from this one."""
        return self.pairing.readers[self.local.rank]

    def work_of(self, claim: Claim) -> Work:
        """What a claim takes, once it is found to be right.

        Raises:
            TransferError: A lease that isn't held for this reader, or memory of it that NIXL can't
                reach.
            ValueError: A claim that doesn't fit the lease, that nothing can be planned for, or of a
                request that is being written.
        """
        lease = self.leases.claim(claim.request_id, self.reader, self.num_readers, monotonic())
        if lease.num_tokens != claim.num_tokens:
            raise ValueError(f"num_tokens: expected {lease.num_tokens}, got {claim.num_tokens}")
        wanted, push = tables_of(claim.wanted), claim.push
        check_blocks("wanted", self.pairing.plan.local, claim.num_tokens, wanted)
        if push is not None and self.reader in lease.writing:
            name = repr(claim.request_id)
            raise ValueError(f"request_id: expected one that isn't being written, got {name}")
        request = TransferRequest(lease.num_tokens, wanted, lease.tables)
        specs = [
            peer.read(request) if push is not None or area is not None else None
            for peer, area in self.routes
        ]
        return Work(lease, specs, None if push is None else self._lists_for(push))

    def _lists_for(self, target: PushTarget) -> list[PreparedCopy]:
        """What a reader is written with; made at its first claim to be written to."""
        if self.target is None:
            if any(peer.convert is not None for peer, _ in self.routes):
                raise ValueError("strategy: expected direct or pack to be written, got pages")
            check_memory(self.pairing.plan.local, self.pairing.rank, target.memory)
            agent = self.local.agent
            known, self.agent = self.agent, None
            if known is not None:  # of a claim whose lists NIXL refused
                agent.disconnect(known)
            self.agent = agent.connect(target.metadata, agent_prefix(*self.reader))
            self.lists = [
                agent.prepare(
                    peer.wire,
                    "remote",
                    (area or self.local.pools).memory,
                    self.agent,
                    target.memory,
                )
                for peer, area in self.routes
            ]
            self.target = target
        if target.memory != self.target.memory:
            raise ValueError("push: expected the memory of the first claim, got another")
        return self.lists

    async def carry_out(self, work: Work) -> None:
        """Packs, and writes unless that is stopped; a lease lasts for as long as it is written.

        Raises:
            TransferError: Whatever goes wrong; the lease is not held for this reader any more.
        """
        try:
            if work.lists is None:
                await self._pack(work)
            else:
                await self._write(work, work.lists)
        except Exception as error:
            self.abandon(work.lease.request_id, work.lease.epoch)
            raise as_failure(error) from error

    async def _write(self, work: Work, lists: list[PreparedCopy]) -> None:
        lease, stop = work.lease, asyncio.Event()
        touching = Tasks()
        lease.writing[self.reader] = stop
        try:
            await self._pack(work)
            for spec, prepared in zip(work.specs, lists, strict=True):
                assert spec is not None, "all that is written is planned"
                await self.local.move("WRITE", prepared, spec.wire, touching, stop)
            if lease.is_withdrawn:
                raise LeaseExpiredError(f"lease {lease.epoch} of this request was withdrawn")
            if stop.is_set():
                raise AbortedError("stopped by its reader")
            # while it still counts as being written, as that may have taken longer than a lease
            self.leases.finish(lease.request_id, lease.epoch, self.reader, monotonic())
        finally:
            await touching.wait()
            self.leases.written(lease, self.reader)

    async def _pack(self, work: Work) -> None:
        """Brings a request into the staging areas that are read or written from."""
        pools = self.local.pools.storages
        for (peer, area), spec in zip(self.routes, work.specs, strict=True):
            if area is not None and peer.pack is not None:
                assert spec is not None, "all that is packed is planned"
                assert spec.pack is not None, "a plan that packs has indices to pack"
                await self.local.copy(copy_here, peer.pack, spec.pack, area.storages, pools)

    def abandon(self, request_id: str, epoch: int | None) -> None:
        """The reader reads a request no more; see `LeaseTable.abandon`."""
        self.leases.abandon(request_id, epoch, self.reader, self.num_readers)

    def end(self) -> None:
        """Ends the session; what it holds goes back with its last claim."""
        self.is_over = True
        self.give_back()

    def give_back(self) -> None:
        """Frees what it holds, once it is over and its last claim has ended."""
        if self.is_over and self.claims == 0:
            for _, area in self.routes:
                if area is not None:
                    area.release()
            self.routes = []
            if self.agent is not None:
                self.local.agent.disconnect(self.agent)
                self.agent = None
