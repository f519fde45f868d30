"""A local rank: its agent, its registered pools, and the thread that moves bytes within it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex
from time import monotonic

import torch

from blockstride.checks import expect
from blockstride.transfer.connector.counters import Counters
from blockstride.transfer.connector.loop import Tasks
from blockstride.transfer.connector.settings import ConnectorSettings
from blockstride.transfer.connector.staging import Area, Storages, load_programs
from blockstride.transfer.copy_plan import Indices
from blockstride.transfer.device import device_of, use_device, wait_for_device
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.nixl import Operation, PreparedCopy, TransferAgent

BUSY_SECONDS = 0.001
"""Pause between two looks at NIXL while a peer may need them."""

IDLE_SECONDS = 0.02
"""The same while nobody is connected."""

SPIN_SECONDS = 0.002
"""For so long a new posting is looked at without any pause."""


def agent_prefix(engine_id: str, rank: int) -> str:
    """What the names of a rank's agents begin with; the rest tells its lives apart."""
    return f"{engine_id}/{rank}/"


class LocalRank:
    """What serving and reading have in common: one rank's memory, and who may copy it.

    Made on the thread that uses it from then on.

    Args:
        info: The engine.
        rank: The rank.
        pools: Pool -> its storage.
        settings: Settings.

    Attributes:
        pools: Its pools, registered.
        device: Where they are.

    Raises:
        ValueError: Other pools than the engine implies, or storages of other sizes.
    """

    def __init__(
        self,
        info: EngineTransferInfo,
        rank: int,
        pools: Storages,
        settings: ConnectorSettings,
    ) -> None:
        device = device_of(pools)
        sizes = {pool: storage.numel() for pool, storage in pools.items()}
        wanted = dict(info.rank_cache(rank).pool_bytes)
        expect(sizes == wanted, "pools", f"storages of {wanted} bytes", sizes)
        for pool, storage in pools.items():
            expect(storage.dtype == torch.int8, f"pool {pool}", torch.int8, storage.dtype)
        self.info, self.rank, self.settings = info, rank, settings
        self.device, self.counters = device, Counters()
        # NIXL looks at the current device when an agent is made and when memory is registered
        use_device(device)
        self.agent = TransferAgent(
            agent_prefix(info.engine_id, rank) + token_hex(8),
            progress_thread=settings.progress_thread,
            num_threads=settings.num_threads,
        )
        self.pools = Area(self.agent, pools)
        self._copier = ThreadPoolExecutor(1, "blockstride-copy", use_device, (self.device,))
        self._fresh_until, self._can_copy = 0.0, False

    def staging(self, info: EngineTransferInfo, rank: int) -> Area:
        """A new staging area in the shape of a rank of an engine, registered.

        Raises:
            ValueError: One that is larger than the settings allow.
        """
        sizes, limit = info.rank_cache(rank).pool_bytes, self.settings.max_staging_bytes
        total = sum(sizes.values())
        expect(total <= limit, info.engine_id, f"at most {limit} bytes", total)
        storages = {
            pool: torch.zeros(nbytes, dtype=torch.int8, device=self.device)
            for pool, nbytes in sizes.items()
        }
        # zeros must not come after what NIXL brings
        wait_for_device(self.device)
        if not self._can_copy and self.device.type == "cpu":
            # what is staged is copied: no request is to wait for the programs that do it
            self._can_copy = True
            self._copier.submit(load_programs)
        return Area(self.agent, storages)

    async def keep_moving(self, is_live: Callable[[], bool]) -> None:
        """Lets NIXL make progress until it is cancelled, more often while it is busy.

        Args:
            is_live: Whether peers may need this rank's agent.
        """
        while True:
            self.agent.progress()
            if monotonic() < self._fresh_until:
                await asyncio.sleep(0)
            else:
                busy = self.agent.unfinished() or is_live()
                await asyncio.sleep(BUSY_SECONDS if busy else IDLE_SECONDS)

    def copy(self, function: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        """Runs a copy within this process beside everything else; copies run one after another."""

        def run() -> None:
            with self.counters.timing("convert_seconds"):
                function(*arguments)
                # what was packed is posted next, and what was converted belongs to the engine
                wait_for_device(self.device)

        return asyncio.get_running_loop().run_in_executor(self._copier, run)

    async def move(
        self,
        operation: Operation,
        prepared: PreparedCopy,
        indices: Indices,
        touching: Tasks,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Moves what a request says, chunk after chunk.

        Args:
            operation: `READ` or `WRITE`.
            prepared: The lists.
            indices: Descriptors of both.
            touching: Gets a future for each posting, which is done once that has stopped, whatever
                becomes of this call.
            stop: Once it is set, the chunks that were not posted yet are left out.

        Raises:
            TransferError: NIXL's failure.
        """
        counters = self.counters
        with counters.timing("plan_seconds"):
            chunks = list(prepared.chunks(indices, self.settings.chunk_bytes))
        for chunk in chunks:
            if stop is not None and stop.is_set():
                return
            stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with counters.timing("post_seconds"):
                posting = prepared.post(operation, chunk)
            if not posting.stopped:
                self._fresh_until = monotonic() + SPIN_SECONDS
                touching.add(stopped)
                posting.when_stopped = partial(stopped.set_result, None)
                with counters.timing("wait_seconds"):
                    await asyncio.shield(stopped)
            else:
                # others have their turn between two chunks
                await asyncio.sleep(0)
            if posting.error is not None:
                raise posting.error
            counters.nbytes += chunk.nbytes
            counters.descriptors += len(chunk.indices.local)
            counters.predicted += chunk.merged
            counters.merged += posting.merged or 0

    def close(self, grace_seconds: float) -> None:
        """Ends the agent, after which nothing touches the pools any more."""
        self._copier.shutdown(wait=True)
        self.agent.close(grace_seconds)
