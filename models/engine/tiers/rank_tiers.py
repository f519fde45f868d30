"""What one rank does of tiers: it copies between its pools and host memory, and moves files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import finalize

import torch

from blockstride.layouts import CacheSpec, KVCachePool, PoolLayout
from blockstride.layouts.poison import poison_pool
from blockstride.models.block_copies import copy_blocks
from blockstride.models.engine.config import EngineConfig
from blockstride.models.engine.pools import plan_model_pools
from blockstride.models.engine.tiers.commands import (
    Copies,
    Demote,
    Promote,
    Save,
    Table,
    TierCommand,
    TierDone,
)
from blockstride.models.memory import expect_room
from blockstride.models.parallel import TensorParallel
from blockstride.transfer import BlockIds, EngineTransferInfo
from blockstride.transfer.tiers import CacheFile, CacheFileWriter, Offloader

FILE_SECONDS = 30.0
"""Time for one file, other ranks included."""

RETRY_SECONDS = 0.005
MANY_STATES = 1 << 20
"""More than a quarter of any memory holds, which is what states get at most."""

Made = TypeVar("Made")

logger = logging.getLogger(__name__)


def plan_host_pools(
    specs: Mapping[str, CacheSpec], config: EngineConfig, parallel: TensorParallel
) -> tuple[PoolLayout, ...]:
    """Where a rank keeps in host memory what its pools have no room for: in pages like theirs.

    Raises:
        ValueError: Too little memory for one sequence; the message names the argument.
    """
    hosts = replace(config, cache_bytes=config.host_bytes, num_blocks=None)
    try:
        return plan_model_pools(specs, hosts, parallel, kept_states=MANY_STATES)
    except ValueError as error:
        raise ValueError(str(error).replace("cache_bytes:", "host_cache_bytes:")) from error


class RankTiers:
    """Host memory of a rank, and a thread that works beside its compute.

    Args:
        pools: The rank's pools.
        specs: The caches of the whole model.
        config: The engine.
        parallel: The rank.
        fingerprint: That of the model; "" where no files are written.
        on_done: Called, on any thread, with what has been done.
    """

    def __init__(
        self,
        pools: Sequence[KVCachePool],
        specs: Mapping[str, CacheSpec],
        config: EngineConfig,
        parallel: TensorParallel,
        fingerprint: str,
        on_done: Callable[[TierDone], object],
    ) -> None:
        plans = plan_host_pools(specs, config, parallel)
        expect_room("host_cache_bytes", sum(plan.nbytes for plan in plans), torch.device("cpu"))
        self.host = tuple(KVCachePool(plan, torch.device("cpu")) for plan in plans)
        if config.poison:
            for pool in self.host:
                poison_pool(pool)
        self._rank, self._on_done = parallel.rank, on_done
        self._device = pools[0].storage.device
        if self._device.type == "cuda":
            for pool in self.host:
                _pin(pool.storage)
        self._ours, self._hosts = (
            [(pool, placed) for pool in each for placed in pool.layout.groups]
            for each in (pools, self.host)
        )
        self._info = EngineTransferInfo.of(
            self.host,
            specs,
            f"host-{parallel.rank}",
            tp_size=parallel.size,
            model_fingerprint=fingerprint,
        )
        self._offloader: Offloader | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=_serve, args=(self._jobs,), name="tiers", daemon=True)
        self._thread.start()
        # not after the interpreter has begun to end
        finalize(self, self._jobs.put, None).atexit = False

    def do(self, command: TierCommand) -> None:
        """Carries a command out, or has the thread do so; what comes of that is told."""
        match command:
            case Demote(copies):
                copy_blocks(self._ours, _listed(copies), self._hosts)
            case Save():
                self._jobs.put(lambda: self._tell(command.job, lambda: self._save(command)))
            case Promote():
                ready = None
                if self._device.type == "cuda":
                    # of kernels that may still use blocks which are to be filled
                    ready = torch.cuda.current_stream(self._device).record_event()
                self._jobs.put(
                    lambda: self._tell(command.job, lambda: self._promote(command, ready))
                )

    def _tell(self, job: int, work: Callable[[], None]) -> None:
        """Does a job; whatever goes wrong is an answer."""
        try:
            work()
            done = TierDone(job)
        except Exception as error:
            path = getattr(error, "cache_path", "")
            done = TierDone(job, f"{type(error).__name__}: {error}", path)
        self._on_done(done)

    def _promote(self, command: Promote, ready: torch.Event | None) -> None:
        for part in command.parts:
            try:
                with CacheFile(part.path) as file:
                    self._mover().read(file, _blocks(part.tables), part.num_tokens)
            except Exception as error:
                error.cache_path = part.path  # type: ignore[attr-defined]
                raise
        copies = _listed(command.copies)
        if ready is None:
            copy_blocks(self._hosts, copies, self._ours)
            return
        stream = torch.cuda.Stream(self._device)
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            copy_blocks(self._hosts, copies, self._ours)
        stream.synchronize()

    def _save(self, command: Save) -> None:
        deadline = monotonic() + FILE_SECONDS
        sizes = self._info, command.num_tokens, command.num_states
        options = {"start": command.start, "tag": command.tag, "save_id": command.save_id}
        blocks = _blocks(command.tables)
        if self._rank > 0:
            # another rank makes it
            make = lambda: CacheFileWriter(Path(command.path), *sizes, **options, join=True)  # noqa: E731
            with _patiently(make, FileNotFoundError, deadline) as writer:
                self._mover().write(writer, blocks)
            return
        with CacheFileWriter(Path(command.path), *sizes, **options) as writer:
            self._mover().write(writer, blocks)
            # others may still write
            _patiently(writer.seal, ValueError, deadline)

    def _mover(self) -> Offloader:
        """What moves files; made when the first one is."""
        if self._offloader is None:
            storages = {i: pool.storage for i, pool in enumerate(self.host)}
            self._offloader = Offloader(
                self._info, self._rank, storages, timeout_seconds=FILE_SECONDS
            )
        return self._offloader

    def close(self) -> None:
        """Ends the thread, when it has done what it was told."""
        self._jobs.put(None)
        self._thread.join(FILE_SECONDS)
        if self._offloader is not None:
            self._offloader.close()


def _serve(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    """Does jobs; knows nothing of whose they are, which may be forgotten meanwhile."""
    while (job := jobs.get()) is not None:
        job()
        del job


def _patiently(call: Callable[[], Made], error: type[Exception], deadline: float) -> Made:
    """Calls something until it succeeds, as long as it raises one kind of error."""
    while True:
        try:
            return call()
        except error:
            if monotonic() > deadline:
                raise
            sleep(RETRY_SECONDS)


def _listed(copies: Copies) -> torch.Tensor:
    return torch.tensor([*copies], dtype=torch.int32).reshape(-1, 3)


def _blocks(tables: Sequence[Table]) -> list[BlockIds]:
    return [BlockIds(table.ids, table.first, table.present) for table in tables]


def _pin(storage: torch.Tensor) -> None:
    """Has a GPU copy to and from memory by itself; without that it is slower, and right."""
    runtime: Any = torch.cuda.cudart()
    error = runtime.cudaHostRegister(storage.data_ptr(), storage.numel(), 0)
    if int(error) != 0:
        logger.warning("host memory of %d bytes isn't pinned: error %s", storage.numel(), error)
