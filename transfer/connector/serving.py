"""Serving: what a producing rank answers to its readers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from secrets import token_bytes
from time import monotonic
from typing import Any, Literal

import zmq.asyncio

from blockstride.transfer.connector.description import blocks_of, describe
from blockstride.transfer.connector.leases import LeaseTable
from blockstride.transfer.connector.local_rank import BUSY_SECONDS, LocalRank
from blockstride.transfer.connector.loop import Tasks
from blockstride.transfer.connector.messages import (
    NOBODY,
    RANDOM_BYTES,
    Challenge,
    Claim,
    Done,
    Finish,
    Goodbye,
    Grant,
    Hello,
    InSession,
    Introduction,
    Refusal,
    Renew,
    Renewed,
    Stop,
    Welcome,
    seal,
    unseal_request,
)
from blockstride.transfer.connector.reader_session import ReaderSession
from blockstride.transfer.errors import Kind, PeerLostError, ProtocolError, as_failure
from blockstride.transfer.nixl import Memory

MAX_CHALLENGES = 256
"""Sessions that were asked for and not begun; the oldest go first."""

MAX_SESSIONS = 4096

FAULTS = ("failed", "lost")
"""Kinds of errors that are no fault of a message."""

logger = logging.getLogger(__name__)


class _SessionOverError(Exception):
    """A message of a session that doesn't exist."""


class Server:
    """Answers readers.

    Args:
        local: The rank.
        socket: A bound ROUTER.
        leases: What it holds.
    """

    def __init__(self, local: LocalRank, socket: zmq.asyncio.Socket, leases: LeaseTable) -> None:
        self._local, self._socket, self._leases = local, socket, leases
        self._challenges: OrderedDict[bytes, None] = OrderedDict()
        self._sessions: dict[bytes, ReaderSession] = {}
        self._tasks = Tasks()

    def __len__(self) -> int:
        return len(self._sessions)

    async def run(self) -> None:
        """Answers messages until it is cancelled."""
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
        """Ends leases and sessions that have timed out, until it is cancelled."""
        while True:
            await asyncio.sleep(min(0.5, self._local.settings.lease_seconds / 8))
            now = monotonic()
            self._leases.expire(now)
            for key, session in list(self._sessions.items()):
                if now - session.last_seen > 2 * self._local.settings.lease_seconds:
                    logger.debug("%s rank %s is unresponsive", *session.reader)
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
                return
            reply = (message.session, message.sequence)
            match message:
                case Claim():
                    self._tasks.start(self._claim(identity, session, message))
                case Stop():
                    self._tasks.start(self._stop(identity, session, message))
                case Renew():
                    await self._send(identity, Renewed(*reply, self._renew(message.leases)))
                case Finish(request_id=request_id, epoch=epoch):
                    self._leases.finish(request_id, epoch, session.reader, monotonic())
                    await self._send(identity, Done(*reply))
                case Goodbye():
                    self._end(message.session)
                    await self._send(identity, Done(*reply))
        except Exception as error:
            # no message, whatever it does to the code above, ends the service
            await self._refuse(identity, message, error)

    async def _refuse(self, identity: bytes, message: InSession, error: Exception) -> None:
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

    def _session_of(self, message: InSession) -> ReaderSession | None:
        """The session of a message; None when the message has come before."""
        session = self._sessions.get(message.session)
        if session is None:
            raise _SessionOverError("no such session: it has ended, or the producer was restarted")
        if message.sequence <= session.sequence:
            return None
        session.sequence, session.last_seen = message.sequence, monotonic()
        return session

    def _welcome(self, message: Introduction) -> Welcome:
        """Begins a session; a challenge can be answered once."""
        if message.session not in self._challenges:
            raise _SessionOverError("no such challenge: answered before, or forgotten")
        del self._challenges[message.session]
        local, reader = self._local, (message.engine.engine_id, message.rank)
        # a reader that introduces itself again has given its old session up
        for key in [key for key, old in self._sessions.items() if old.reader == reader]:
            self._end(key)
        if len(self._sessions) >= MAX_SESSIONS:
            raise ProtocolError(f"sessions: expected at most {MAX_SESSIONS}, got one more")
        session = ReaderSession.begin(message, local, self._leases)
        self._sessions[message.session] = session
        logger.debug("%s rank %s has introduced itself", *session.reader)
        return Welcome(
            message.session,
            message.sequence,
            describe(local.info),
            local.rank,
            local.agent.metadata,
            local.pools.memory,
            [area.memory if area else Memory() for _, area in session.routes],
            local.settings.lease_seconds,
        )

    def _renew(self, leases: list[tuple[str, int]]) -> list[str]:
        """Renews leases; returns the requests of those that are not held any more."""
        now = monotonic()
        return [name for name, epoch in leases if not self._leases.renew(name, epoch, now)]

    async def _claim(self, identity: bytes, session: ReaderSession, message: Claim) -> None:
        """Grants a claim once the blocks are packed, or written, as its reader wants it."""
        session.claims += 1
        try:
            work = session.work_of(message)
            await session.carry_out(work)
            reply = (message.session, message.sequence)
            tables = blocks_of(work.lease.tables)
            await self._send(identity, Grant(*reply, work.lease.epoch, tables))
        except Exception as error:
            await self._refuse(identity, message, error)
            if isinstance(error, PeerLostError) and message.session in self._sessions:
                # NIXL's connection is broken for good: its reader has to make another session
                self._end(message.session)
        finally:
            session.claims -= 1
            session.give_back()

    async def _stop(self, identity: bytes, session: ReaderSession, message: Stop) -> None:
        """Answers once nothing is written for a request any more."""
        while self._leases.stop_writing(session.reader, message.request_id):
            await asyncio.sleep(BUSY_SECONDS)
        session.abandon(message.request_id, message.epoch)
        await self._send(identity, Done(message.session, message.sequence))

    def _end(self, key: bytes) -> None:
        self._sessions.pop(key).end()

    async def close(self) -> None:
        """Ends all sessions, once nothing is written any more."""
        self._leases.stop_all()
        await self._tasks.wait(self._local.settings.answer_seconds)
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
