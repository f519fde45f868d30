"""The connector: one rank's end of all transfers, on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import zmq
import zmq.asyncio
from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_seconds, expect_type, names, whole
from blockstride.transfer.compatibility import expect_fingerprint
from blockstride.transfer.connector.counters import Counters
from blockstride.transfer.connector.handle import ReadHandle, ReadRequest, check_request_id
from blockstride.transfer.connector.leases import LeaseEnd, LeaseTable
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.loop import LoopThread, Tasks, new_socket
from blockstride.transfer.connector.producer import Producer
from blockstride.transfer.connector.reading import Read
from blockstride.transfer.connector.serving import Server
from blockstride.transfer.connector.settings import ConnectorSettings
from blockstride.transfer.device import CPU, device_of, expect_storages, wait_for_device
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.errors import AbortedError
from blockstride.transfer.request import BlockIds, check_blocks


class Connector:
    """One rank's end of all transfers: it offers blocks to readers, and reads from producers.

    Everything happens on one thread, beside the engine's compute: messages, NIXL, deadlines.
    Methods may be called from any thread and return at once, `close` apart.

    On a GPU, `offer` and `start_read` first wait for all that was launched before them, since NIXL
    doesn't: kernels may still write what is offered, and what was freed and is to be filled.

    Args:
        info: The engine.
        rank: This rank.
        settings: Settings; None for the defaults.
        on_change: Called, on the connector's thread, whenever a read is done or has settled, or an
            offer has ended. It must be quick, and call nothing of the connector.
    """

    def __init__(
        self,
        info: EngineTransferInfo,
        rank: int = 0,
        settings: ConnectorSettings | None = None,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        expect_type(info, "info", EngineTransferInfo)
        expect_type(settings, "settings", ConnectorSettings | None)
        expect(callable(on_change), "on_change", "something to call", on_change, TypeError)
        expect_fingerprint(info)
        rank = whole(rank, "rank")
        info.coordinates(rank)
        self.info, self.rank = info, rank
        self.settings = settings or ConnectorSettings()
        self._thread: LoopThread | None = None
        self._address, self._device = "", CPU
        self._on_change = on_change
        self._leases = LeaseTable(self.settings.lease_seconds, on_change)
        self._producers: dict[str, Producer] = {}
        self._reads: dict[str, tuple[ReadHandle, asyncio.Task[None]]] = {}
        self._services, self._linking, self._background = Tasks(), Tasks(), Tasks()

    def register_kv_caches(self, pools: Mapping[int, Tensor]) -> str:
        """Registers the memory and begins to listen.

        Args:
            pools: Pool number -> its bytes, as `KVCachePool.storage`, for the pools of this rank.

        Returns:
            The address that readers take.

        Raises:
            ValueError: Other pools, or other sizes, than the engine implies; memory of a GPU that
                other processes can't reach; or a second call.
            TypeError: Something else than tensors.
            OSError: The address can't be listened on.
            ImportError: NIXL is not installed.
        """
        expect(self._thread is None, "register_kv_caches", "one call", "a second one")
        expect_storages(pools)
        self._device = device_of(pools)
        # of what was offered before, and of pools that are being filled for the first time
        wait_for_device(self._device)
        self._thread = LoopThread(f"blockstride-{self.info.engine_id}")
        try:
            return self._thread.run(self._start(pools))
        except BaseException:
            self._thread.end()
            raise

    async def _start(self, pools: Mapping[int, Tensor]) -> str:
        settings = self.settings
        self._context = zmq.asyncio.Context()
        self._socket = new_socket(self._context, zmq.ROUTER, settings.max_message_bytes)
        try:
            self._socket.bind(f"tcp://{settings.host}:{settings.port or '*'}")
            self._local = LocalRank(self.info, self.rank, pools, settings)
        except BaseException as error:
            self._socket.close()
            self._context.term()
            if isinstance(error, zmq.ZMQError):
                where = f"{settings.host}:{settings.port}"
                raise OSError(error.errno, f"{where}: {error.strerror}") from error
            raise
        self._address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._server = Server(self._local, self._socket, self._leases)
        for service in (self._server.run, self._server.sweep):
            self._services.start(service())
        self._services.start(self._local.keep_moving(self._is_live))
        # making an agent takes seconds on a busy machine
        self._leases.begin(monotonic())
        return self._address

    def _is_live(self) -> bool:
        in_session = any(producer.sessions for producer in self._producers.values())
        return bool(len(self._server) or in_session or self._reads)

    def _producer(self, engine_id: str) -> Producer:
        """What is known of an engine; without addresses until it is added."""
        if engine_id not in self._producers:
            self._producers[engine_id] = Producer(self._local, self._context, engine_id)
        return self._producers[engine_id]

    @property
    def address(self) -> str:
        """Where readers reach this rank; "" before `register_kv_caches`."""
        return self._address

    def add_peer(self, engine_id: str, addresses: Sequence[str]) -> None:
        """Makes known where the ranks of a producing engine listen, rank 0 first.

        Once more with other addresses, or with none for an engine that is gone, links to the old
        ones are given up; the processes that listened there must have ended, since one that writes
        here could not be told to stop.
        """
        expect_type(engine_id, "engine_id", str)
        known = names(addresses, "addresses")
        self._running().call(lambda: self._producer(engine_id).set_addresses(known))

    def connect(self, engine_id: str) -> None:
        """Begins to link to an engine, so that no request pays for that.

        Whether it succeeds shows when a request is read; that makes missing links itself.
        """
        expect_type(engine_id, "engine_id", str)

        def begin() -> None:
            self._linking.start(self._producer(engine_id).link(self.settings.answer_seconds))

        self._running().call(begin)

    def start_read(self, request: ReadRequest) -> ReadHandle:
        """Begins to take over a sequence.

        Returns:
            What tells its outcome; every failure is reported there.

        Raises:
            ValueError: A request of that name is under way already, or blocks that can't be right.
        """
        expect_type(request, "request", ReadRequest)
        check_blocks("local", self.info, request.num_tokens, request.local)
        wait_for_device(self._device)
        handle, thread = ReadHandle(request, _on_change=self._on_change), self._running()
        name = request.request_id

        def begin() -> None:
            expect(name not in self._reads, "request_id", "one that isn't being read", repr(name))
            read = Read(handle, self._local, self._producer, self._background)
            task = asyncio.create_task(read.run())
            self._reads[name] = handle, task
            task.add_done_callback(lambda _: self._reads.pop(name))

            def abort() -> None:
                if not handle.done:
                    task.cancel()

            handle._abort = lambda: thread.post(abort)

        thread.call(begin)
        return handle

    def offer(self, request_id: str, num_tokens: int, blocks: Sequence[BlockIds]) -> None:
        """Holds blocks for readers, until all of them have read or the lease runs out.

        Before `register_kv_caches` this makes sure that no reader comes too early; the lease begins
        to run out with that.

        Args:
            request_id: The name under which they are read.
            num_tokens: Tokens of the sequence.
            blocks: Its blocks, one entry for each group.

        Raises:
            ValueError: Blocks that no request could name, or a request that is held already.
        """
        check_request_id(request_id)
        num_tokens = whole(num_tokens, "num_tokens")
        check_blocks("offered", self.info, num_tokens, blocks)
        wait_for_device(self._device)

        def offer() -> None:
            self._leases.offer(request_id, num_tokens, blocks, monotonic())

        if self._thread is None:
            offer()
        else:
            self._running().call(offer)

    def withdraw(self, request_id: str) -> bool:
        """Ends an offer; whoever still reads is told that it came too late.

        Returns:
            Whether its blocks are free now: not when they are just being written to a reader, which
            is stopped; `ended_leases` tells when it has.
        """
        check_request_id(request_id)
        return self._running().call(lambda: self._leases.withdraw(request_id))

    def ended_leases(self) -> list[LeaseEnd]:
        """Offers that ended since the last call: their blocks belong to the engine again."""
        return self._running().call(self._leases.ended)

    def counters(self) -> Counters:
        """The counters up to now."""
        return self._running().call(self._local.counters.snapshot)

    def close(self, grace_seconds: float = 2.0) -> None:
        """Ends everything; afterwards nothing touches the pools any more.

        Args:
            grace_seconds: How long transfers that are under way may take.
        """
        expect_seconds(grace_seconds, "grace_seconds", or_none_at_all=True)
        if self._thread is not None and self._thread.is_alive:
            self._thread.run(self._stop(grace_seconds))
            self._thread.end()

    async def _stop(self, grace_seconds: float) -> None:
        handles = [handle for handle, _ in self._reads.values()]
        reads = [task for _, task in self._reads.values()]
        self._linking.cancel()
        for handle in handles:
            handle.abort()
        if reads:
            await asyncio.wait(reads, timeout=grace_seconds)
        await self._background.end(grace_seconds)
        await asyncio.gather(*(producer.close() for producer in self._producers.values()))
        await self._server.close()
        for task in reads:
            task.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await self._linking.end()
        await self._services.end()
        self._local.close(grace_seconds)
        for handle in handles:
            # the agent is gone, and with it all that could write
            if not handle.done:
                handle.error = AbortedError("the connector was closed")
            handle._end()
            handle._settle()
        self._socket.close()
        self._context.term()

    def _running(self) -> LoopThread:
        """The thread, which runs from registration to closing."""
        thread = self._thread
        got = "one without registered caches" if thread is None else "a closed one"
        is_open = thread is not None and thread.is_alive
        expect(is_open, "connector", "an open one, after register_kv_caches", got)
        assert thread is not None, "checked above"
        return thread

    def __enter__(self) -> Connector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
