"""Reading: a request from its first message to the moment when its blocks are free.

Each step is one loop: over sources (`_from_any_source`), over the ranks of one (`_from_engine`),
over the routes to one (`_from_rank`), and over the chunks of a route (`LocalRank.move`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from time import perf_counter

from blockstride.transfer.connector.description import blocks_of, tables_of
from blockstride.transfer.connector.handle import BlockLists, ReadHandle
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.loop import Tasks
from blockstride.transfer.connector.messages import Claim, Done, Finish, Grant, PushTarget, Stop
from blockstride.transfer.connector.pairing import Pairing
from blockstride.transfer.connector.producer import Producer
from blockstride.transfer.connector.producer_session import ProducerSession, Route
from blockstride.transfer.connector.staging import cast_here, copy_here
from blockstride.transfer.errors import (
    AbortedError,
    DeadlineError,
    LeaseExpiredError,
    PeerFailedError,
    PeerLostError,
    PeerRefusedError,
    TransferError,
    as_failure,
)
from blockstride.transfer.request import BlockIds, TransferRequest, check_blocks

OF_SOURCE = (LeaseExpiredError, PeerFailedError, PeerLostError, PeerRefusedError)
"""Errors after which another source may do better."""

logger = logging.getLogger(__name__)


class Read:
    """One request that is being read; see `Connector.start_read`.

    Args:
        handle: What its caller holds.
        local: The reading rank.
        producer: Engine -> what is known of it.
        background: Keeps what goes on after the outcome is known.
    """

    def __init__(
        self,
        handle: ReadHandle,
        local: LocalRank,
        producer: Callable[[str], Producer],
        background: Tasks,
    ) -> None:
        self._handle, self._local, self._producer = handle, local, producer
        self._request, self._background = handle.request, background
        # what may still write to its blocks or to staging memory
        self._touching = Tasks()
        self._forget_source()

    def _forget_source(self) -> None:
        """Begins anew with another source."""
        self._pairing: Pairing | None = None
        # remote ranks that have said that their lease held
        self._confirmed: set[int] = set()
        # remote rank -> epoch of the lease that it granted
        self._epochs: dict[int, int] = {}
        # remote rank -> done once that rank writes nothing more
        self._written: dict[int, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Reads until the deadline; the outcome goes to the handle."""
        handle, request, start = self._handle, self._request, perf_counter()
        error: TransferError | None = None
        try:
            async with asyncio.timeout(request.deadline_seconds):
                await self._from_any_source()
        except TimeoutError:
            reason = f"not done within {request.deadline_seconds} s"
            error = DeadlineError(reason, peer=self._waits_for())
        except asyncio.CancelledError:
            error = AbortedError("aborted by its caller")
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        except TransferError as failure:
            error = failure
        except Exception as failure:
            # whatever it is, whoever waits must hear of it
            logger.exception("request %r", request.request_id)
            error = as_failure(failure)
        if error is None:
            self._local.counters.requests += 1
        else:
            self._local.counters.failures[error.kind] += 1
            handle.error = error.of_request(request.request_id)
            handle.invalid_blocks = self._invalid()
        handle._end()
        ms = 1e3 * (perf_counter() - start)
        logger.debug("%s, %.1f ms", handle.error or f"request {request.request_id!r}: read", ms)
        await self._touching.wait()
        handle._settle()

    def _invalid(self) -> BlockLists:
        request = self._request
        if self._pairing is None:
            return [blocks.ids for blocks in request.local]
        return self._pairing.invalid_blocks(request.num_tokens, request.local, self._confirmed)

    def _waits_for(self) -> str:
        if self._pairing is None:
            return " or ".join(self._request.sources)
        missing = [rank for rank in self._pairing.ranks if rank not in self._confirmed]
        return f"{self._pairing.plan.remote.engine_id} rank {', '.join(map(str, missing))}"

    async def _from_any_source(self) -> None:
        sources = self._request.sources
        for i, engine_id in enumerate(sources):
            is_last = i + 1 == len(sources)
            try:
                # the last one may take what time is left
                patience = None if is_last else self._local.settings.answer_seconds
                await self._from_engine(self._producer(engine_id), patience)
            except OF_SOURCE as error:
                # a posting that still runs would write into what the next source brings
                if is_last or self._touching:
                    raise
                logger.debug("request %r: %s; next replica", self._request.request_id, error)
                self._local.counters.retries += 1
                self._forget_source()
            else:
                self._handle.source = engine_id
                return

    async def _from_engine(self, producer: Producer, patience: float | None) -> None:
        """Reads from all ranks of an engine; the first failure ends it at the others, too."""
        first = await producer.any_session(patience)
        self._pairing = pairing = first.pairing
        cast = producer.cast
        try:
            async with AsyncExitStack() as stack:
                if cast is not None:
                    await self._take(producer.cast_turn, stack)
                try:
                    async with asyncio.TaskGroup() as group:
                        for rank in pairing.ranks:
                            group.create_task(self._from_rank(producer, rank, patience))
                except BaseExceptionGroup as failures:
                    raise failures.exceptions[0] from None
                if cast is not None:
                    blocks, pools = self._request.local, self._local.pools.storages
                    await self._copy(cast_here, pairing, blocks, cast.storages, pools)
        except BaseException:
            # producers needn't wait for their leases to run out, those that weren't asked yet too
            for rank in pairing.ranks:
                if rank not in self._confirmed:
                    leaving = (rank, self._epochs.get(rank), self._written.get(rank))
                    self._background.start(self._leave(producer, *leaving))
            raise

    async def _from_rank(self, producer: Producer, rank: int, patience: float | None) -> None:
        """Claims, reads by all routes, and asks whether the lease held."""
        session, request = await producer.session(rank, patience), self._request
        try:
            targets = session.pairing.targets(request.local)
            async with AsyncExitStack() as stack:
                for route in session.routes:
                    if route.plan.staging is not None:
                        await self._take(route.turn, stack)
                if self._local.settings.push:
                    await self._be_written_to(session, targets, producer)
                else:
                    await self._read_and_confirm(session, targets, producer)
        except TransferError as error:
            error.peer = error.peer or session.peer
            raise
        except ValueError as error:
            raise PeerRefusedError(str(error), peer=session.peer) from error
        self._confirmed.add(rank)

    async def _read_and_confirm(
        self, session: ProducerSession, targets: Sequence[BlockIds], producer: Producer
    ) -> None:
        request_id = self._request.request_id
        try:
            grant = await self._claim(session, targets, None)
            self._epochs[session.rank] = session.epochs[request_id] = grant.epoch
            found = TransferRequest(self._request.num_tokens, targets, tables_of(grant.tables))
            work = [self._along(route, session, found, producer) for route in session.routes]
            await session.unless_lost([asyncio.create_task(each) for each in work])
            await session.call(Done, Finish, request_id=request_id, epoch=grant.epoch)
        finally:
            session.epochs.pop(request_id, None)

    async def _claim(
        self, session: ProducerSession, targets: Sequence[BlockIds], push: PushTarget | None
    ) -> Grant:
        grant = await session.call(
            Grant,
            Claim,
            patiently=True,
            request_id=self._request.request_id,
            num_tokens=self._request.num_tokens,
            wanted=blocks_of(targets),
            push=push,
        )
        info = session.pairing.plan.remote
        check_blocks("remote", info, self._request.num_tokens, tables_of(grant.tables))
        return grant

    async def _along(
        self, route: Route, session: ProducerSession, request: TransferRequest, producer: Producer
    ) -> None:
        """Moves what one route brings, and converts it where that is its way."""
        local, convert = self._local, route.plan.convert
        with local.counters.timing("plan_seconds"):
            spec = route.plan.read(request)
        try:
            await local.move("READ", route.prepared, spec.wire, self._touching)
        except PeerLostError as error:
            # NIXL's connection is broken for good, and with it all lists of this session
            session.fail(error)
            raise
        if convert is not None and spec.convert is not None and route.staging is not None:
            into, arrived = producer.target.storages, route.staging.storages
            await self._copy(copy_here, convert, spec.convert, into, arrived)

    async def _copy(self, function: Callable[..., None], *arguments: object) -> None:
        """A copy within this process, which goes on to its end even if the request is aborted."""
        copying = self._touching.add(self._local.copy(function, *arguments))
        try:
            await asyncio.shield(copying)
        except Exception as error:
            # not of the peer's making, whatever its type
            raise as_failure(error) from error

    async def _take(self, turn: asyncio.Lock, stack: AsyncExitStack) -> None:
        """Takes a turn at staging memory, until nothing of this request touches it any more."""
        await turn.acquire()

        async def release() -> None:
            await self._touching.wait()
            turn.release()

        stack.callback(lambda: self._background.start(release()))

    async def _leave(
        self,
        producer: Producer,
        rank: int,
        epoch: int | None,
        written: asyncio.Future[None] | None,
    ) -> None:
        """Tells a producer that its blocks aren't read any more, once that is true.

        One that may still write is asked until it, or its successor at that address, says that it
        has stopped, or until it has no address: then its processes have ended.
        """
        request_id, settings = self._request.request_id, self._local.settings
        if not settings.push:
            await self._touching.wait()
        while True:
            is_gone = not producer.addresses
            with suppress(TransferError):
                session = await producer.session(rank, settings.answer_seconds)
                await session.call(Done, Stop, patiently=True, request_id=request_id, epoch=epoch)
                break
            if written is None or written.done():
                return
            await asyncio.sleep(settings.backoff_seconds)
            if is_gone:
                # what it had sent was in buffers, and has come since
                break
        if written is not None and not written.done():
            written.set_result(None)

    async def _be_written_to(
        self, session: ProducerSession, targets: Sequence[BlockIds], producer: Producer
    ) -> None:
        """Has the producer write; until it says that it has stopped, blocks are in its hands."""
        written = self._touching.add(asyncio.get_running_loop().create_future())
        self._written[session.rank] = written
        target = PushTarget(producer.target.memory, self._local.agent.metadata)
        try:
            await self._claim(session, targets, target)
        except TransferError as error:
            if error.is_answer:
                written.set_result(None)
            raise
        written.set_result(None)
