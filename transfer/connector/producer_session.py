"""A session with a producer: what a reader says to one of its ranks, and what it reads there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from blockstride.transfer.connector.description import check_memory, describe, engine_of
from blockstride.transfer.connector.local_rank import LocalRank, agent_prefix
from blockstride.transfer.connector.loop import Tasks, new_socket
from blockstride.transfer.connector.messages import (
    NOBODY,
    RANDOM_BYTES,
    Challenge,
    Done,
    Goodbye,
    Hello,
    InSession,
    Introduction,
    Refusal,
    Renew,
    Renewed,
    Welcome,
    seal,
    unseal_answer,
)
from blockstride.transfer.connector.pairing import Pairing, plan_options
from blockstride.transfer.connector.staging import Area
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.errors import (
    PeerLostError,
    PeerRefusedError,
    ProtocolError,
    TransferError,
    answered,
)
from blockstride.transfer.nixl import Memory, Peer, PreparedCopy
from blockstride.transfer.peer_plan import PeerPlan

MIN_HEARTBEAT_SECONDS = 0.02
"""The shortest pause between two heartbeats, however short a producer's leases are."""

GOODBYE_SECONDS = 1.0
"""How long the end of a session waits for an answer; a peer that is ending gives none."""

Reply = TypeVar("Reply")


@dataclass(eq=False)
class Route:
    """One strategy by which a rank is read, ready to run.

    Attributes:
        plan: The steps.
        prepared: Lists of the step on the wire.
        staging: Where pages arrive that are to be converted.
        turn: Held by the request that uses staging memory, here or at the producer.
    """

    plan: PeerPlan
    prepared: PreparedCopy
    staging: Area | None
    turn: asyncio.Lock


class ProducerSession:
    """A session with one rank of a producing engine.

    Attributes:
        peer: `engine rank N`, for messages.
        rank: That rank.
        failed: Done, with the error, once the peer doesn't answer or the session was closed.
        epochs: Requests that are being read -> epochs of their leases.
        info: The producing engine, from its welcome.
        memory: Its pools on that rank.
        areas: Its staging areas for this reader.
        agent: Its agent; None until its welcome was accepted.
        pairing: The plan of which this is one remote rank's part.
        routes: That part.
    """

    def __init__(self, local: LocalRank, engine_id: str, rank: int, address: str) -> None:
        self.peer, self.rank = f"{engine_id} rank {rank}", rank
        self.epochs: dict[str, int] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.info: EngineTransferInfo
        self.memory: Memory
        self.areas: list[Memory]
        self.agent: Peer | None = None
        self.pairing: Pairing
        self.routes: list[Route] = []
        self._local, self._engine_id, self._address = local, engine_id, address
        self._session, self._sequence = b"", 0
        self._pending: dict[bytes | int, asyncio.Future[Any]] = {}
        self._tasks = Tasks()

    async def open(self, context: zmq.asyncio.Context) -> None:
        """Shakes hands.

        Raises:
            PeerLostError: Nobody answers in time.
            PeerRefusedError: The peer does not want this reader, or this reader not the peer.
            ProtocolError: What answers is no connector of this version and key.
        """
        settings = self._local.settings
        self._socket = new_socket(context, zmq.DEALER, settings.max_message_bytes)
        self._socket.connect(self._address)
        self._tasks.start(self._receive())
        nonce = token_bytes(RANDOM_BYTES)
        challenge = await self._exchange(Hello(nonce), nonce, Challenge, settings.answer_seconds)
        self._session = challenge.session
        welcome = await self.call(
            Welcome,
            Introduction,
            engine=describe(self._local.info),
            rank=self._local.rank,
            options=plan_options(settings),
        )
        try:
            self._accept(welcome)
        except (ValueError, TypeError) as error:
            raise PeerRefusedError(f"its welcome: {error}", peer=self.peer) from error
        wanted = min(settings.heartbeat_seconds, welcome.lease_seconds / 4)
        self._tasks.start(self._keep_alive(max(MIN_HEARTBEAT_SECONDS, wanted)))
        await self._warm_up()
        self._local.counters.handshakes += 1

    def _accept(self, welcome: Welcome) -> None:
        """Takes over what a welcome says, once that has been checked."""
        engine_id, rank = welcome.engine.engine_id, welcome.rank
        got, wanted = (engine_id, rank), (self._engine_id, self.rank)
        if got != wanted:
            raise ValueError(f"expected {wanted}, got {got}")
        self.info = engine_of(welcome.engine, self._local.info)
        check_memory(self.info, rank, welcome.memory)
        self.memory, self.areas = welcome.memory, welcome.areas
        self.agent = self._local.agent.connect(welcome.metadata, agent_prefix(engine_id, rank))

    async def _warm_up(self) -> None:
        """Connects NIXL now, within the time of an answer, so that no request pays for it."""
        if self.agent is None or not self.memory.addresses:
            return
        posting = self._local.agent.warm(self.agent, self.memory)
        try:
            async with asyncio.timeout(self._local.settings.answer_seconds):
                while not posting.poll():
                    await asyncio.sleep(0)
        except TimeoutError:
            raise PeerLostError("NIXL can't connect to it", peer=self.peer) from None
        if posting.error is not None:
            raise PeerLostError(posting.error.reason, peer=self.peer)

    async def call(
        self,
        answer: type[Reply],
        request: type[InSession],
        *,
        seconds: float | None = None,
        patiently: bool = False,
        **fields: object,
    ) -> Reply:
        """Sends a request and waits for its answer.

        Args:
            answer: The type of answer.
            request: The type of request.
            seconds: How long to wait; None: as the settings say.
            patiently: Whether to wait for as long as the peer lives instead.
            fields: What the request says, apart from session and sequence.

        Raises:
            PeerLostError: No answer in time, or the session has failed.
            TransferError: The peer's own error, as what it was there.
        """
        self._sequence += 1
        message = request(session=self._session, sequence=self._sequence, **fields)
        seconds = None if patiently else seconds or self._local.settings.answer_seconds
        return await self._exchange(message, self._sequence, answer, seconds)

    async def _exchange(
        self, message: Any, key: bytes | int, answer: type[Reply], seconds: float | None
    ) -> Reply:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[key] = future
        try:
            async with asyncio.timeout(seconds):
                self._raise_if_failed()
                await self._socket.send(seal(message, self._local.settings.key))
                await asyncio.wait({future, self.failed}, return_when=asyncio.FIRST_COMPLETED)
                self._raise_if_failed()
                found = await future
        except TimeoutError:
            what = type(message).__name__.lower()
            raise self.fail(f"no answer to a {what} within {seconds} s") from None
        finally:
            self._pending.pop(key, None)
        if isinstance(found, Refusal):
            if found.kind == "session":
                raise self.fail(found.reason)
            raise answered(found.kind, found.reason, self.peer)
        if not isinstance(found, answer):
            wrong = f"expected {answer.__name__}, got {type(found).__name__}"
            raise ProtocolError(wrong, peer=self.peer)
        return found

    async def _receive(self) -> None:
        """Hands answers to the calls that wait for them; others are replays, and dropped."""
        while True:
            frame = await self._socket.recv()
            try:
                message = unseal_answer(frame, self._local.settings.key)
            except ProtocolError as error:
                self._local.counters.refused_messages += 1
                error.peer = self.peer
                self.fail(error)
                return
            if isinstance(message, Refusal) and message.session == NOBODY:
                self.fail(PeerRefusedError(message.reason, peer=self.peer))
                return
            key = message.nonce if isinstance(message, Challenge) else message.sequence
            ours = isinstance(message, Challenge) or message.session == self._session
            future = self._pending.get(key) if ours else None
            if future is None or future.done():
                self._local.counters.refused_messages += 1
            else:
                future.set_result(message)

    async def _keep_alive(self, heartbeat_seconds: float) -> None:
        """Sends heartbeats, with the leases that are still needed."""
        while True:
            await asyncio.sleep(heartbeat_seconds)
            try:
                renewed = await self.call(Renewed, Renew, leases=list(self.epochs.items()))
            except TransferError as error:
                self.fail(error.reason)
                return
            for request_id in renewed.lost:
                self.epochs.pop(request_id, None)

    async def unless_lost(self, work: list[asyncio.Task[None]]) -> None:
        """Waits for tasks, unless one fails or the peer is lost first."""
        try:
            while left := {task for task in work if not task.done()}:
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait({*left, self.failed}, return_when=first)
                for future in done:
                    future.result()
            for task in work:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def fail(self, error: TransferError | str) -> TransferError:
        """Fails the session, and every call that waits; a text says why the peer is lost."""
        if isinstance(error, str):
            error = PeerLostError(error, peer=self.peer)
        if not self.failed.done():
            self.failed.set_exception(error)
            # whoever waits raises it; nobody may have to
            self.failed.exception()
        return error

    def _raise_if_failed(self) -> None:
        if self.failed.done() and (error := self.failed.exception()) is not None:
            raise error

    async def close(self, *, politely: bool = False) -> None:
        """Ends the session.

        Args:
            politely: Tell the peer, and wait a little for its answer.
        """
        if politely and not self.failed.done():
            with suppress(TransferError):
                await self.call(Done, Goodbye, seconds=GOODBYE_SECONDS)
        self.fail("the session was closed")
        self._tasks.cancel()
        self._socket.close()
        agent, self.agent = self.agent, None
        if agent is not None:
            self._local.agent.disconnect(agent)

    async def release(self) -> None:
        """Gives staging areas back, once nothing is written to them any more."""
        for route in self.routes:
            if route.staging is not None:
                async with route.turn:
                    route.staging.release()
