"""Reading: a request from its first message to the moment when its blocks are free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from time import perf_counter

from blockstride.transfer.connector.description import blocks_of, regions_of, tables_of
from blockstride.transfer.connector.handle import BlockLists, ReadHandle
from blockstride.transfer.connector.job import Job
from blockstride.transfer.connector.links import Connection, Links, Route
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.messages import Claim, Done, Finish, Grant, Stop, Target
from blockstride.transfer.connector.pairing import Pairing
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

logger = logging.getLogger(__name__)


class Reader:
    """Reads requests; see `Connector.start_read`.

    Args:
        local: The rank.
        links: Its links.
    """

    def __init__(self, local: LocalRank, links: Links) -> None:
        self._local, self._links = local, links
        self._stopping: set[asyncio.Task[None]] = set()

    async def read(self, handle: ReadHandle) -> None:
        """Runs a request to its end; the outcome goes to its handle."""
        job, request, start = Job(handle), handle.request, perf_counter()
        error: TransferError | None = None
        try:
            async with asyncio.timeout(request.deadline_seconds):
                await self._from_any_source(job)
        except TimeoutError:
            error = DeadlineError(f"not done within {request.deadline_seconds} s")
            error.peer = self._waits_for(job)
        except asyncio.CancelledError:
            error = AbortedError("given up by its caller")
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        except TransferError as failure:
            error = failure
        except Exception as failure:
            # whatever it is, whoever waits must hear of it
            logger.exception("request %r", request.request_id)
            error = as_failure(failure)
        counters = self._local.counters
        if error is None:
            counters.requests += 1
        else:
            handle.error = error.of_request(request.request_id)
            counters.failures[error.kind] += 1
            handle.invalid_blocks = self._invalid(job)
        handle._end()
        outcome = handle.error or f"from {handle.source}"
        seconds = perf_counter() - start
        logger.debug("request %r: %s, %.1f ms", request.request_id, outcome, 1e3 * seconds)
        while job.touching:
            await asyncio.wait(job.touching)
        handle._settle()

    async def connect(self, engine_id: str, patience: float) -> None:
        """Links to all ranks of an engine that this one reads from."""
        try:
            any_rank = self._local.rank % len(self._links.ranks(engine_id))
            first = await self._links.connection(engine_id, any_rank, patience)
            for rank in first.pairing.ranks:
                await self._links.connection(engine_id, rank, patience)
        except TransferError as error:
            # a request that needs it will say so
            logger.debug("not linked to %s: %s", engine_id, error)

    def _invalid(self, job: Job) -> BlockLists:
        request = job.handle.request
        if job.pairing is None:
            return [blocks.ids for blocks in request.local]
        return job.pairing.invalid_blocks(request.num_tokens, request.local, job.confirmed)

    def _waits_for(self, job: Job) -> str:
        """Ranks that have not confirmed, for a message."""
        sources = job.handle.request.sources
        if job.pairing is None:
            return " or ".join(sources)
        missing = [rank for rank in job.pairing.ranks if rank not in job.confirmed]
        return f"{job.pairing.plan.remote.engine_id} rank {', '.join(map(str, missing))}"

    async def _from_any_source(self, job: Job) -> None:
        request = job.handle.request
        sources = request.sources
        for i, engine_id in enumerate(sources):
            try:
                # the last one may take what time is left
                patience = self._local.settings.answer_seconds if i + 1 < len(sources) else None
                await self._from_source(job, engine_id, patience)
            except (
                LeaseExpiredError,
                PeerFailedError,
                PeerLostError,
                PeerRefusedError,
            ) as error:
                # a handle that still runs would write into what the next source brings
                if i + 1 == len(sources) or job.touching:
                    raise
                logger.debug("request %r: %s; next replica", request.request_id, error)
                self._local.counters.retries += 1
                job.forget_source()
                continue
            job.handle.source = engine_id
            return

    async def _from_source(self, job: Job, engine_id: str, patience: float | None) -> None:
        """Reads from all ranks of an engine; the first failure ends it at the others, too."""
        ranks = self._links.ranks(engine_id)
        any_rank = self._local.rank % len(ranks)
        first = await self._links.connection(engine_id, any_rank, patience)
        job.pairing = first.pairing
        try:
            await self._from_all_ranks(job, engine_id, first.pairing, patience)
        except BaseException:
            # producers needn't wait for their leases to run out, those that weren't asked yet too
            for rank in first.pairing.ranks:
                if rank not in job.confirmed:
                    epoch, written = job.epochs.get(rank), job.written.get(rank)
                    self._in_background(self._leave(job, engine_id, rank, epoch, written))
            raise

    async def _from_all_ranks(
        self, job: Job, engine_id: str, pairing: Pairing, patience: float | None
    ) -> None:
        _, area = self._links.target(pairing)
        async with AsyncExitStack() as stack:
            if area is not None:
                await self._take(self._links.cast_turns[engine_id], job, stack)
            try:
                async with asyncio.TaskGroup() as group:
                    for rank in pairing.ranks:
                        group.create_task(self._from_rank(job, engine_id, rank, patience))
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            if area is not None:
                local, pools = job.handle.request.local, self._local.pools
                await self._copy(job, cast_here, pairing, local, area.storages, pools)

    async def _from_rank(self, job: Job, engine_id: str, rank: int, patience: float | None) -> None:
        connection = await self._links.connection(engine_id, rank, patience)
        peer, request = connection.link.peer, job.handle.request
        try:
            targets = connection.pairing.targets(request.local)
            async with AsyncExitStack() as stack:
                for route in connection.routes:
                    if route.plan.staging is not None:
                        await self._take(route.turn, job, stack)
                if request.push:
                    await self._be_written_to(job, connection, targets)
                else:
                    await self._read_and_confirm(job, connection, targets)
        except TransferError as error:
            error.peer = error.peer or peer
            raise
        except ValueError as error:
            raise PeerRefusedError(str(error), peer=peer) from error
        job.confirmed.add(rank)
        logger.debug("request %r: %s has confirmed", request.request_id, peer)

    async def _read_and_confirm(
        self, job: Job, connection: Connection, targets: Sequence[BlockIds]
    ) -> None:
        request, link = job.handle.request, connection.link
        try:
            grant = await self._claim(job, connection, targets)
            epoch = job.epochs[link.rank] = link.leases[request.request_id] = grant.epoch
            work = [
                asyncio.create_task(self._run(job, connection, route, grant, targets))
                for route in connection.routes
            ]
            await self._unless_lost(connection, work)
            await link.call(Done, Finish, request_id=request.request_id, epoch=epoch)
        finally:
            link.leases.pop(request.request_id, None)

    async def _claim(
        self,
        job: Job,
        connection: Connection,
        targets: Sequence[BlockIds],
        push: Target | None = None,
    ) -> Grant:
        request = job.handle.request
        grant = await connection.link.call(
            Grant,
            Claim,
            seconds=None,
            request_id=request.request_id,
            num_tokens=request.num_tokens,
            wanted=blocks_of(targets),
            push=push,
        )
        info = connection.pairing.plan.remote
        check_blocks("remote", info, request.num_tokens, tables_of(grant.tables))
        return grant

    async def _run(
        self,
        job: Job,
        connection: Connection,
        route: Route,
        grant: Grant,
        targets: Sequence[BlockIds],
    ) -> None:
        """One route of a granted request: wire, then conversion."""
        local = self._local
        with local.counters.timing("plan_seconds"):
            tables = tables_of(grant.tables)
            request = TransferRequest(job.handle.request.num_tokens, targets, tables)
            spec = route.plan.read(request)
        try:
            await local.move("READ", route.prepared, spec.wire, job.touching)
        except PeerLostError as error:
            # NIXL's connection is broken for good, and with it all lists of this link
            connection.link.fail(error)
            raise
        if route.plan.convert is not None and spec.convert is not None and route.staging:
            _, area = self._links.target(connection.pairing)
            into = local.pools if area is None else area.storages
            convert = route.plan.convert
            await self._copy(job, copy_here, convert, spec.convert, into, route.staging.storages)

    async def _copy(self, job: Job, function: Callable[..., None], *arguments: object) -> None:
        """A copy within this process, which goes on to its end even if the request is given up."""
        copying = self._local.copy(function, *arguments)
        job.touching.add(copying)
        copying.add_done_callback(job.touching.discard)
        try:
            await asyncio.shield(copying)
        except Exception as error:
            # not of the peer's making, whatever its type
            raise as_failure(error) from error

    async def _unless_lost(self, connection: Connection, work: list[asyncio.Task[None]]) -> None:
        """Waits for tasks, unless one fails or the peer is lost first."""
        failed = connection.link.failed
        try:
            while left := {task for task in work if not task.done()}:
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait({*left, failed}, return_when=first)
                for future in done:
                    future.result()
            for task in work:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _take(self, turn: asyncio.Lock, job: Job, stack: AsyncExitStack) -> None:
        """Takes a turn at staging memory, until nothing of this job touches it any more."""
        await turn.acquire()

        async def release() -> None:
            while job.touching:
                await asyncio.wait(job.touching)
            turn.release()

        stack.callback(lambda: self._in_background(release()))

    def _in_background(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _leave(
        self,
        job: Job,
        engine_id: str,
        rank: int,
        epoch: int | None,
        written: asyncio.Future[None] | None,
    ) -> None:
        """Tells a producer that its blocks aren't read any more, once that is true.

        One that may still write is asked until it, or its successor at that address, says that it
        has stopped.
        """
        request, settings = job.handle.request, self._local.settings
        while job.touching and not request.push:
            await asyncio.wait(job.touching)
        while True:
            with suppress(TransferError):
                connection = await self._links.connection(engine_id, rank, settings.answer_seconds)
                request_id = request.request_id
                await connection.link.call(
                    Done, Stop, seconds=None, request_id=request_id, epoch=epoch
                )
                break
            if written is None or written.done():
                return
            await asyncio.sleep(settings.backoff_seconds)
        if written is not None and not written.done():
            written.set_result(None)

    async def _be_written_to(
        self, job: Job, connection: Connection, targets: Sequence[BlockIds]
    ) -> None:
        """Has the producer write; until it says that it has stopped, blocks are in its hands."""
        memory, _ = self._links.target(connection.pairing)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        job.written[connection.link.rank] = written
        job.touching.add(written)
        written.add_done_callback(job.touching.discard)
        target = Target(regions_of(memory), self._local.agent.metadata)
        try:
            await self._claim(job, connection, targets, target)
        except TransferError as error:
            if error.is_answer:
                written.set_result(None)
            raise
        written.set_result(None)

    async def close(self, grace_seconds: float) -> None:
        """Ends what is left in the background, once producers know, or after some time."""
        left = list(self._stopping)
        if left:
            _, left = await asyncio.wait(left, timeout=grace_seconds)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
