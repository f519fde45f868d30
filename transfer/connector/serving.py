"""Serving: what a producing rank answers to its readers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import suppress
from secrets import token_bytes
from time import monotonic
from typing import Any, Literal

import zmq.asyncio

from blockstride.transfer.connector.description import (
    blocks_of,
    describe,
    engine_of,
    regions_of,
    tables_of,
)
from blockstride.transfer.connector.leases import Lease, LeaseTable
from blockstride.transfer.connector.local_rank import BUSY_SECONDS, LocalRank
from blockstride.transfer.connector.messages import (
    NOBODY,
    Answer,
    Challenge,
    Claim,
    Done,
    Finish,
    Goodbye,
    Grant,
    Hello,
    Introduction,
    Refusal,
    Renew,
    Renewed,
    Request,
    Stop,
    Welcome,
    seal,
    unseal_request,
)
from blockstride.transfer.connector.pairing import pair
from blockstride.transfer.connector.parts import RANDOM_BYTES, Blocks
from blockstride.transfer.connector.writing import Session, Work, Writer
from blockstride.transfer.errors import (
    Kind,
    PeerLostError,
    ProtocolError,
    as_failure,
)
from blockstride.transfer.request import TransferRequest, check_blocks

MAX_CHALLENGES = 256
"""Sessions that were asked for and not begun; the oldest go first."""

MAX_SESSIONS = 4096

FAULTS = ("failed", "lost")
"""Kinds of errors that are no fault of a message."""

logger = logging.getLogger(__name__)


class _SessionOverError(Exception):
    """A message of a session that doesn't exist."""


class Server:
    """Answers readers, holds leases, packs, and writes where it is asked to.

    Args:
        local: The rank.
        socket: A bound ROUTER.
        leases: What it holds.
    """

    def __init__(self, local: LocalRank, socket: zmq.asyncio.Socket, leases: LeaseTable) -> None:
        self._local, self._socket, self._leases = local, socket, leases
        self._challenges: OrderedDict[bytes, None] = OrderedDict()
        self._sessions: dict[bytes, Session] = {}
        self._writer = Writer(local, leases)
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    async def run(self) -> None:
        """Answers for ever."""
        while True:
            identity, *frames = await self._socket.recv_multipart()
            frame = frames[-1] if len(frames) == 1 else b""
            try:
                message = unseal_request(frame, self._local.settings.key)
            except ProtocolError as error:
                self._local.counters.refused_messages += 1
                logger.debug("refused a message: %s", error)
                await self._send(identity, Refusal(NOBODY, 1, str(error)))
                continue
            if isinstance(message, Hello):
                await self._send(identity, self._challenge(message))
            else:
                await self._answer(identity, message)

    async def sweep(self) -> None:
        """Ends leases and sessions of readers that say nothing, for ever."""
        while True:
            await asyncio.sleep(min(0.5, self._local.settings.lease_seconds / 8))
            now = monotonic()
            self._leases.expire(now)
            for key, session in list(self._sessions.items()):
                if now - session.last_seen > 2 * self._local.settings.lease_seconds:
                    logger.debug("%s rank %s says nothing any more", *session.reader)
                    self._end(key)

    async def _send(self, identity: bytes, message: Any) -> None:
        # a reader that is gone needs no answer
        with suppress(zmq.ZMQError):
            await self._socket.send_multipart([identity, seal(message, self._local.settings.key)])

    def _challenge(self, hello: Hello) -> Challenge:
        session = token_bytes(RANDOM_BYTES)
        self._challenges[session] = None
        if len(self._challenges) > MAX_CHALLENGES:
            self._challenges.popitem(last=False)
        return Challenge(hello.nonce, session)

    async def _answer(self, identity: bytes, message: Any) -> None:
        """Answers a message at once, or begins to."""
        try:
            if isinstance(message, Introduction):
                await self._send(identity, self._welcome(message))
                return
            session = self._session_of(message)
            if session is None:
                # a replay: an answer would pass for that to the message itself
                self._local.counters.refused_messages += 1
            elif isinstance(message, Claim):
                self._begin(self._claim(identity, session, message))
            elif isinstance(message, Stop):
                self._begin(self._stop(identity, session, message))
            else:
                await self._send(identity, self._answer_now(session, message))
        except Exception as error:
            # no message, whatever it does to the code above, ends the service
            await self._refuse(identity, message, error)

    async def _refuse(self, identity: bytes, message: Request, error: Exception) -> None:
        kind, reason = _told(error)
        what = type(message).__name__.lower()
        if kind in FAULTS:
            self._local.counters.failed_claims += 1
            logger.info("failed at a %s: %s", what, reason, exc_info=error)
        else:
            self._local.counters.refused_messages += 1
            logger.debug("refused a %s: %s", what, reason)
        refusal = Refusal(message.session, message.sequence, reason[:2000], kind)
        await self._send(identity, refusal)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _session_of(self, message: Request) -> Session | None:
        """The session of a message; None when the message has come before."""
        session = self._sessions.get(message.session)
        if session is None:
            raise _SessionOverError("there is no such session: introduce yourself again")
        if message.sequence <= session.sequence:
            return None
        session.sequence, session.last_seen = message.sequence, monotonic()
        return session

    def _welcome(self, message: Introduction) -> Welcome:
        """Begins a session; a challenge can be answered once."""
        if message.session not in self._challenges:
            raise _SessionOverError("there is no such challenge")
        del self._challenges[message.session]
        local = self._local
        info = engine_of(message.engine, local.info)
        info.coordinates(message.rank)
        reader = (info.engine_id, message.rank)
        # a reader that introduces itself again has given its old session up
        for key in [key for key, old in self._sessions.items() if old.reader == reader]:
            self._end(key)
        if len(self._sessions) >= MAX_SESSIONS:
            raise ProtocolError(f"{MAX_SESSIONS} sessions are enough")
        pairing = pair(info, message.rank, local.info, message.options)
        session = Session(reader, pairing, [], message.sequence, monotonic())
        try:
            for peer in pairing.peers(local.rank):
                area = None
                if peer.pack is not None and peer.staging is not None:
                    area = local.area(peer.staging, message.rank)
                session.routes.append((peer, area))
        except ValueError:
            session.release_areas()
            raise
        self._sessions[message.session] = session
        logger.debug("%s rank %s has introduced itself", *reader)
        areas = [regions_of(area.memory) if area else [] for _, area in session.routes]
        return Welcome(
            message.session,
            message.sequence,
            describe(local.info),
            local.rank,
            local.agent.metadata,
            regions_of(local.memory),
            areas,
            local.settings.lease_seconds,
        )

    def _answer_now(self, session: Session, message: Any) -> Answer:
        reply = (message.session, message.sequence)
        now = monotonic()
        match message:
            case Renew():
                kept = {pair: self._leases.renew(*pair, now) for pair in message.leases}
                return Renewed(*reply, [name for (name, _), held in kept.items() if not held])
            case Finish():
                self._leases.finish(message.request_id, message.epoch, session.reader, now)
                return Done(*reply)
            case _:
                assert isinstance(message, Goodbye), "all other messages are matched above"
                self._end(message.session)
                return Done(*reply)

    async def _claim(self, identity: bytes, session: Session, message: Claim) -> None:
        """Grants a claim once the blocks are packed, or written, as its reader wants it."""
        session.claims += 1
        try:
            lease, work = self._work_of(session, message)
            await self._carry_out(session, message, lease, work)
            tables: list[Blocks] = blocks_of(lease.tables)
            reply = (message.session, message.sequence)
            await self._send(identity, Grant(*reply, lease.epoch, tables))
        except Exception as error:
            await self._refuse(identity, message, error)
            if isinstance(error, PeerLostError) and message.session in self._sessions:
                # NIXL's connection is broken for good: its reader has to make another session
                self._end(message.session)
        finally:
            session.claims -= 1
            self._give_back(session)

    def _work_of(self, session: Session, message: Claim) -> tuple[Lease, Work]:
        """What a claim takes, once it is found to be right.

        Raises:
            TransferError: A lease that isn't held for this reader.
            ValueError: A claim that doesn't fit the lease, or that nothing can be planned for.
        """
        pairing = session.pairing
        readers = pairing.readers[self._local.rank]
        lease = self._leases.claim(message.request_id, session.reader, readers, monotonic())
        if lease.num_tokens != message.num_tokens:
            raise ValueError(f"num_tokens: expected {lease.num_tokens}, got {message.num_tokens}")
        wanted = tables_of(message.wanted)
        check_blocks("wanted", pairing.plan.local, message.num_tokens, wanted)
        request = TransferRequest(lease.num_tokens, wanted, lease.tables)
        return lease, self._writer.work(session, message.push, lease, request)

    async def _carry_out(self, session: Session, message: Claim, lease: Lease, work: Work) -> None:
        """Packs or writes; a lease that this fails under is not held for its reader any more."""
        try:
            await self._writer.carry_out(session, lease, work)
        except Exception as error:
            self._abandon(session, message.request_id, lease.epoch)
            raise as_failure(error) from error

    def _abandon(self, session: Session, request_id: str, epoch: int | None) -> None:
        readers = session.pairing.readers[self._local.rank]
        self._leases.abandon(request_id, epoch, session.reader, readers)

    async def _stop(self, identity: bytes, session: Session, message: Stop) -> None:
        """Answers once nothing is written for a request any more."""
        while self._writer.stop(session.reader, message.request_id):
            await asyncio.sleep(BUSY_SECONDS)
        self._abandon(session, message.request_id, message.epoch)
        await self._send(identity, Done(message.session, message.sequence))

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key)
        session.is_over = True
        self._give_back(session)

    def _give_back(self, session: Session) -> None:
        """Frees what belongs to a session that is over, unless a claim still uses it."""
        if session.is_over and session.claims == 0:
            session.release_areas()
            if session.agent is not None:
                self._local.agent.disconnect(session.agent)
                session.agent = None

    async def close(self) -> None:
        """Ends all sessions, once nothing is written any more."""
        self._writer.stop_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._local.settings.answer_seconds)
        for key in list(self._sessions):
            self._end(key)


def _told(error: Exception) -> tuple[Kind | Literal["session"], str]:
    """What a reader is told of an error: its kind and its message."""
    if isinstance(error, _SessionOverError):
        return "session", str(error)
    if isinstance(error, ValueError | TypeError):
        # what the message asked for can't be
        return "refused", str(error)
    failure = as_failure(error)
    return failure.kind, failure.reason
