"""A link: a reader's session with one rank of a producing engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from secrets import token_bytes
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from blockstride.transfer.connector.description import (
    check_regions,
    describe,
    engine_of,
    memory_of,
)
from blockstride.transfer.connector.local_rank import LocalRank, agent_prefix
from blockstride.transfer.connector.messages import (
    NOBODY,
    Challenge,
    Done,
    Goodbye,
    Hello,
    Introduction,
    Refusal,
    Renew,
    Renewed,
    Request,
    Welcome,
    seal,
    unseal_answer,
)
from blockstride.transfer.connector.pairing import plan_options
from blockstride.transfer.connector.parts import RANDOM_BYTES
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.errors import (
    PeerLostError,
    PeerRefusedError,
    ProtocolError,
    TransferError,
    answered,
)
from blockstride.transfer.nixl import Memory, Peer

MIN_HEARTBEAT_SECONDS = 0.02
"""Whatever a producer says of its leases, a reader does not drown it in heartbeats."""

GOODBYE_SECONDS = 1.0
"""How long one that leaves waits for an answer; a peer that leaves as well gives none."""

Reply = TypeVar("Reply")


def new_socket(context: zmq.asyncio.Context, kind: int, max_bytes: int) -> zmq.asyncio.Socket:
    """A socket that refuses long messages and keeps nothing once it is closed."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    return socket


class Link:
    """A session with one remote rank.

    Attributes:
        peer: `engine rank N`, for messages.
        rank: That rank.
        failed: Done, with the error, once the peer doesn't answer or the link was closed.
        leases: Requests that are being read, with their epochs.
        info: The producing engine, from its welcome.
        memory: Its pools on that rank.
        areas: Its staging areas for this reader.
        agent: Its agent; None until its welcome was accepted.
    """

    def __init__(self, local: LocalRank, engine_id: str, rank: int, address: str) -> None:
        self.peer = f"{engine_id} rank {rank}"
        self.leases: dict[str, int] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.info: EngineTransferInfo
        self.memory: Memory
        self.areas: list[Memory]
        self.agent: Peer | None = None
        self.rank = rank
        self._local, self._engine_id = local, engine_id
        self._address = address
        self._session, self._sequence = b"", 0
        self._pending: dict[bytes | int, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []

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
        self._tasks.append(asyncio.create_task(self._receive()))
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
        self._heartbeat_seconds = max(MIN_HEARTBEAT_SECONDS, wanted)
        self._tasks.append(asyncio.create_task(self._keep_alive()))
        await self._warm_up()
        self._local.counters.handshakes += 1

    def _accept(self, welcome: Welcome) -> None:
        """Believes a welcome, once all that it says has been checked."""
        engine_id, rank = welcome.engine.engine_id, welcome.rank
        got, wanted = (engine_id, rank), (self._engine_id, self.rank)
        if got != wanted:
            raise ValueError(f"expected {wanted}, got {got}")
        self.info = engine_of(welcome.engine, self._local.info)
        self.memory = check_regions(self.info, rank, welcome.regions)
        self.areas = [memory_of(area) for area in welcome.areas]
        prefix = agent_prefix(engine_id, rank)
        self.agent = self._local.agent.connect(welcome.metadata, prefix)

    async def _warm_up(self) -> None:
        """Pays for NIXL's connection now, within the time of an answer."""
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
        self, answer: type[Reply], request: type[Request], *, seconds: float | None = -1.0, **fields
    ) -> Reply:
        """Sends a request and waits for its answer.

        Args:
            answer: The type of answer.
            request: The type of request.
            seconds: How long to wait: as the settings say, or None for as long as the peer lives.
            fields: What the request says, apart from session and sequence.

        Raises:
            PeerLostError: No answer in time, or the link has failed.
            TransferError: The peer's own error, as what it was there.
        """
        self._sequence += 1
        message = request(session=self._session, sequence=self._sequence, **fields)
        seconds = self._local.settings.answer_seconds if seconds == -1.0 else seconds
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
            error = PeerLostError(f"no answer to a {what} within {seconds} s", peer=self.peer)
            self.fail(error)
            raise error from None
        finally:
            self._pending.pop(key, None)
        if isinstance(found, Refusal):
            if found.kind == "session":
                error = PeerLostError(found.reason, peer=self.peer)
                self.fail(error)
                raise error
            raise answered(found.kind, found.reason, self.peer)
        if not isinstance(found, answer):
            raise ProtocolError(
                f"expected {answer.__name__}, got {type(found).__name__}", peer=self.peer
            )
        return found

    async def _receive(self) -> None:
        """Hands answers to those who wait; what nobody waits for is a replay, and dropped."""
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

    async def _keep_alive(self) -> None:
        """Says again and again that this reader lives and what it still reads."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            try:
                renewed = await self.call(Renewed, Renew, leases=list(self.leases.items()))
            except TransferError as error:
                self.fail(PeerLostError(error.reason, peer=self.peer))
                return
            for request_id in renewed.lost:
                self.leases.pop(request_id, None)

    def fail(self, error: TransferError) -> None:
        """Makes everybody who waits for this peer hear of its end."""
        if not self.failed.done():
            self.failed.set_exception(error)
            # whoever waits raises it; nobody may have to
            self.failed.exception()

    def _raise_if_failed(self) -> None:
        if self.failed.done() and (error := self.failed.exception()) is not None:
            raise error

    async def close(self, *, politely: bool = False) -> None:
        """Ends the session and gives back what belongs to it.

        Args:
            politely: Tell the peer, and wait a little for its answer.
        """
        if politely and not self.failed.done():
            with suppress(TransferError):
                await self.call(Done, Goodbye, seconds=GOODBYE_SECONDS)
        self.fail(PeerLostError("the link was closed", peer=self.peer))
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._socket.close()
        if self.agent is not None:
            self._local.agent.disconnect(self.agent)
