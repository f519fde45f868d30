"""Producers: the engines that a reader knows, their plans, and sessions, made again when lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import zmq.asyncio

from blockstride.transfer.connector.description import check_memory
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.loop import Tasks
from blockstride.transfer.connector.pairing import Pairing, pair, plan_options
from blockstride.transfer.connector.producer_session import ProducerSession, Route
from blockstride.transfer.connector.staging import Area
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.errors import PeerLostError, PeerRefusedError, TransferError

FIRST_PAUSE_SECONDS = 0.02

logger = logging.getLogger(__name__)


class Producer:
    """A producing engine, and how this rank reads from it.

    Args:
        local: This rank.
        context: Makes sockets.
        engine_id: The engine.

    Attributes:
        addresses: Where its ranks listen.
        sessions: Rank -> the session with it.
        cast: Where its bytes wait to be cast, if they must be.
        cast_turn: Held by the request that uses that.
    """

    def __init__(self, local: LocalRank, context: zmq.asyncio.Context, engine_id: str) -> None:
        self.addresses: tuple[str, ...] = ()
        self.sessions: dict[int, ProducerSession] = {}
        self.cast: Area | None = None
        self.cast_turn = asyncio.Lock()
        self._local, self._context, self._engine_id = local, context, engine_id
        self._pairing: Pairing | None = None
        self._opening: dict[int, asyncio.Lock] = {}
        self._tasks = Tasks()

    @property
    def target(self) -> Area:
        """Where what is read arrives: the pools, or the staging area before a cast."""
        return self.cast or self._local.pools

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Sets where its ranks listen; sessions with addresses that changed are closed."""
        known, self.addresses = self.addresses, tuple(addresses)
        for rank in list(self.sessions):
            if known[rank : rank + 1] != self.addresses[rank : rank + 1]:
                self.sessions.pop(rank).fail("its address has changed")

    async def any_session(self, patience: float | None) -> ProducerSession:
        """The session with one of its ranks; readers choose different ones."""
        if not self.addresses:
            reason = "unknown engine: expected its addresses by add_peer, got none"
            raise PeerRefusedError(reason, peer=self._engine_id)
        return await self.session(self._local.rank % len(self.addresses), patience)

    async def link(self, patience: float) -> None:
        """Begins sessions with all ranks that this one reads from, before a request needs them."""
        try:
            first = await self.any_session(patience)
            for rank in first.pairing.ranks:
                await self.session(rank, patience)
        except TransferError as error:
            # a request that needs it will say so
            logger.debug("not linked to %s: %s", self._engine_id, error)

    async def session(self, rank: int, patience: float | None) -> ProducerSession:
        """The session with a rank, made if there is none.

        Args:
            rank: Its number.
            patience: Seconds for which attempts go on; None: until the caller gives up.

        Raises:
            PeerRefusedError: The peer doesn't want this reader, or this reader not the peer: trying
                again is no use.
            PeerLostError: It was not reached within `patience`.
        """
        try:
            async with asyncio.timeout(patience):
                return await self._session(rank)
        except TimeoutError:
            reason = f"not reached within {patience} s"
            raise PeerLostError(reason, peer=f"{self._engine_id} rank {rank}") from None

    async def _session(self, rank: int) -> ProducerSession:
        pause = FIRST_PAUSE_SECONDS
        async with self._opening.setdefault(rank, asyncio.Lock()):
            while True:
                found = self.sessions.get(rank)
                if found is not None and not found.failed.done():
                    return found
                # addresses may have changed since the last attempt
                if rank >= len(self.addresses):
                    peer = f"{self._engine_id} rank {rank}"
                    reason = "unknown rank: expected its address by add_peer, got none"
                    raise PeerRefusedError(reason, peer=peer)
                try:
                    self.sessions[rank] = await self._open(rank)
                except PeerLostError as error:
                    self._local.counters.failed_handshakes += 1
                    logger.debug("%s; next attempt in %.2f s", error, pause)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, self._local.settings.backoff_seconds)

    async def _open(self, rank: int) -> ProducerSession:
        session = ProducerSession(self._local, self._engine_id, rank, self.addresses[rank])
        try:
            await session.open(self._context)
            session.pairing = self._plan(session.info)
            self._make_routes(session)
        except BaseException as error:
            if isinstance(error, TransferError):
                error.peer = session.peer
            await session.close()
            await session.release()
            if isinstance(error, ValueError | TypeError):
                raise PeerRefusedError(str(error), peer=session.peer) from error
            raise
        logger.debug("in session with %s", session.peer)
        self._tasks.start(self._until_failed(session))
        return session

    async def _until_failed(self, session: ProducerSession) -> None:
        """Frees what a session holds as soon as it has failed, not when the next one begins."""
        try:
            await asyncio.wait({session.failed})
        finally:
            if self.sessions.get(session.rank) is session:
                del self.sessions[session.rank]
            # a socket that is left open would keep its context from ending
            await session.close()
        await session.release()

    def _plan(self, info: EngineTransferInfo) -> Pairing:
        """The plan for the engine as one of its ranks has described it.

        Raises:
            TransferError: Another engine than its other ranks describe, or a request that still
                uses the staging area of an earlier one.
            ValueError: Caches of another model, or too many bytes of staging memory.
        """
        local, known = self._local, self._pairing
        if known is not None and known.plan.remote == info:
            return known
        if any(not session.failed.done() for session in self.sessions.values()):
            raise PeerRefusedError("its description differs from that of its other ranks")
        if info.world_size > len(self.addresses):
            got = len(self.addresses)
            raise ValueError(f"addresses: expected {info.world_size}, one a rank, got {got}")
        if self.cast_turn.locked():
            raise PeerLostError("a transfer from before its restart is still in flight")
        made = pair(local.info, local.rank, info, plan_options(local.settings))
        if self.cast is not None:
            self.cast.release()
            self.cast = None
        if made.casts:
            self.cast = local.staging(made.plan.local, local.rank)
        self._pairing = made
        return made

    def _make_routes(self, session: ProducerSession) -> None:
        """Prepares all that is read from a rank.

        Raises:
            PeerRefusedError: Staging areas that don't fit the plan, or memory that NIXL refuses.
            ValueError: Likewise, or too many bytes of staging memory.
        """
        assert session.agent is not None, "a session that was opened has an agent"
        local, peers = self._local, session.pairing.peers(session.rank)
        if len(session.areas) != len(peers):
            got = len(session.areas)
            raise PeerRefusedError(f"staging areas: expected {len(peers)}, got {got}")
        for peer, area in zip(peers, session.areas, strict=True):
            there, staging = session.memory, None
            if peer.convert is not None and peer.staging is not None:
                staging = local.staging(peer.staging, session.rank)
            if peer.pack is not None and peer.staging is not None:
                check_memory(peer.staging, local.rank, area)
                there = area
            here = (staging or self.target).memory
            try:
                prepared = local.agent.prepare(peer.wire, "local", here, session.agent, there)
            except TransferError as error:
                if staging is not None:
                    staging.release()
                raise PeerRefusedError(str(error)) from error
            session.routes.append(Route(peer, prepared, staging, asyncio.Lock()))

    async def close(self) -> None:
        """Ends all sessions, and tells the producers."""
        sessions = list(self.sessions.values())
        self.sessions.clear()
        await asyncio.gather(*(session.close(politely=True) for session in sessions))
        await self._tasks.end()
