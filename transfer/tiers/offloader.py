"""Moving blocks between the pools of a rank and stored caches, by NIXL within this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from time import monotonic, sleep
from types import TracebackType
from typing import NamedTuple

from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_seconds, expect_type, whole
from blockstride.transfer.compatibility import expect_fingerprint
from blockstride.transfer.connector.description import expect_plannable
from blockstride.transfer.copy_plan import Side
from blockstride.transfer.device import device_of, expect_storages, on_device, wait_for_device
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.errors import DeadlineError
from blockstride.transfer.nixl import (
    Memory,
    Operation,
    Peer,
    Posting,
    Registration,
    TransferAgent,
)
from blockstride.transfer.plan import EngineTransferPlan, plan_transfer
from blockstride.transfer.request import BlockIds, TransferRequest
from blockstride.transfer.tiers.stored_cache import Place, StoredCache

CHUNK_BYTES = 1 << 26
POLL_SECONDS = 50e-6


class Moved(NamedTuple):
    """What a call moved.

    Attributes:
        nbytes: Bytes.
        descriptors: Descriptors that the plan asked for.
        merged: Descriptors that NIXL made of them.
    """

    nbytes: int = 0
    descriptors: int = 0
    merged: int = 0

    def plus(self, nbytes: int, descriptors: int, merged: int) -> Moved:
        """The sum of this and one call more."""
        return Moved(self.nbytes + nbytes, self.descriptors + descriptors, self.merged + merged)


@dataclass(eq=False)
class _Call:
    """What a call keeps of NIXL, until nothing of it moves any more.

    Attributes:
        place: The stored cache; of a file, a descriptor of our own, which stays open as long.
        peer: This process as the other end of its copies.
        registration: Of its memory; None before there is one.
    """

    place: Place
    peer: Peer
    registration: Registration | None = None


class Offloader:
    """One rank of an engine, and what takes its blocks to stored caches and back.

    The pools are registered once. A call waits for their device, and blocks until all is done. NIXL
    has no cancel, so what runs into its deadline keeps the offloader from being closed until it has
    stopped.

    Args:
        engine: The engine.
        rank: Its rank.
        pools: Pool -> its bytes, int8. Files are read and written from host memory only; caches in
            host memory reach whatever UCX does.
        timeout_seconds: The most that one call may take.

    Raises:
        ValueError: Other pools than the engine implies, storages of other sizes, memory of a GPU
            that other processes can't reach, or an engine without a fingerprint of its model.
        TypeError: An argument of another type.
        ImportError: NIXL is not installed.
    """

    def __init__(
        self,
        engine: EngineTransferInfo,
        rank: int,
        pools: Mapping[int, Tensor],
        *,
        timeout_seconds: float = 60.0,
    ) -> None:
        expect_type(engine, "engine", EngineTransferInfo)
        rank = whole(rank, "rank")
        expect_seconds(timeout_seconds, "timeout_seconds")
        expect_fingerprint(engine)
        expect_storages(pools)
        self._device = device_of(pools)
        sizes = {pool: storage.numel() for pool, storage in pools.items()}
        wanted = dict(engine.rank_cache(rank).pool_bytes)
        expect(sizes == wanted, "pools", f"storages of {wanted} bytes", sizes)
        self.engine, self.rank, self.timeout_seconds = engine, rank, timeout_seconds
        name = f"{engine.engine_id}/{rank}/tiers/{token_hex(8)}"
        # registered memory must outlive its registration
        self._memory = dict(pools)
        # NIXL looks at the current device when an agent is made and when memory is registered
        with on_device(self._device):
            self._agent = TransferAgent(name, backends=("UCX", "POSIX"))
            self._pools = self._agent.register(self._memory)
        self._name = f"{engine.engine_id} rank {rank}"
        self._kept: list[_Call] = []

    def write(self, store: StoredCache, blocks: Sequence[BlockIds]) -> Moved:
        """Stores this rank's part of a sequence.

        Args:
            store: Where it goes; made with this engine.
            blocks: The sequence's blocks, a table for each group of the engine.

        Raises:
            ValueError: A store that isn't to be written or holds another model's caches, or block
                ids that can't be right.
            TransferError: NIXL fails, or takes too long.
        """
        expect_type(store, "store", StoredCache)
        expect_plannable(store.engine, self.engine)
        plan = plan_transfer(store.engine, 0, self.engine)
        has_states = store.num_states > 0
        request = TransferRequest(store.num_tokens, store.blocks, blocks, has_states)
        with store.writing(self.rank):
            return self._run("WRITE", plan, request, "remote", store.place)

    def read(
        self, store: StoredCache, blocks: Sequence[BlockIds], num_tokens: int | None = None
    ) -> Moved:
        """Fills blocks of this rank from a stored sequence.

        Args:
            store: What is stored; no byte is read unless all of it is whole.
            blocks: The blocks to fill, a table for each group of the engine; blocks before the
                first of a table are present already. No states: none are wanted.
            num_tokens: Tokens that are wanted, of a cache without windows; None: all of them.

        Raises:
            ValueError: A store that isn't whole or holds another model's caches, or block ids that
                can't be right.
            CacheFileError: A file of which a block is not what was written.
            TransferError: NIXL fails, or takes too long: the blocks hold anything.
        """
        expect_type(store, "store", StoredCache)
        expect_plannable(store.engine, self.engine)
        plan = plan_transfer(self.engine, self.rank, store.engine)
        count = store.num_tokens if num_tokens is None else whole(num_tokens, "num_tokens", 1)
        groups = zip(self.engine.groups, blocks, strict=True)
        has_states = any(len(each.ids) for group, each in groups if not group.spec.has_tokens)
        request = TransferRequest(count, blocks, store.first_blocks(count), has_states)
        store.expect_readable()
        return self._run("READ", plan, request, "local", store.place)

    def _run(
        self,
        operation: Operation,
        plan: EngineTransferPlan,
        request: TransferRequest,
        pools_are: Side,
        place: Place,
    ) -> Moved:
        deadline, total = monotonic() + self.timeout_seconds, Moved()
        mine = self._pools.memory
        if place.kind == "FILE":
            wanted = "host memory, from which files are written"
            expect(mine.kind == "DRAM", "pools", wanted, mine.kind)
        specs = plan.reads(request)
        # kernels may still write what is saved, and what was freed and is to be filled
        wait_for_device(self._device)
        with on_device(self._device), self._call(place) as call:
            theirs = Memory(call.place.kind, call.place.device, dict(place.addresses))
            for peer, read in zip(plan.peers, specs, strict=True):
                # a store has one rank; of those that a store reads from, one is here
                if pools_are == "local" or peer.remote_rank == self.rank:
                    prepared = self._agent.prepare(
                        peer.wire, pools_are, mine, call.peer, theirs, (place.backend,)
                    )
                    for chunk in prepared.chunks(read.wire, CHUNK_BYTES):
                        merged = self._wait(prepared.post(operation, chunk), operation, deadline)
                        total = total.plus(chunk.nbytes, len(chunk.indices.local), merged)
        return total

    def _wait(self, posting: Posting, operation: Operation, deadline: float) -> int:
        """Waits until a chunk has moved; returns the descriptors that NIXL made of it."""
        while not posting.poll():
            if monotonic() > deadline:
                message = f"{operation}: expected an end within {self.timeout_seconds} s, got none"
                raise DeadlineError(message, peer=self._name)
            sleep(POLL_SECONDS)
        if posting.error is not None:
            raise posting.error
        return posting.merged or 0

    @contextmanager
    def _call(self, place: Place) -> Iterator[_Call]:
        """What a call needs of NIXL, given back at its end, or later if something still moves."""
        if place.kind == "FILE":
            place = replace(place, device=os.dup(place.device))
        call = _Call(place, self._agent.itself())
        self._kept.append(call)
        try:
            call.registration = self._agent.register_range(
                place.kind, place.device, place.start, place.nbytes, place.backend
            )
            yield call
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Gives back what belongs to calls of which nothing moves any more."""
        for call in list(self._kept):
            if call.peer.poll():
                continue
            self._kept.remove(call)
            call.peer.release()
            if call.registration is not None:
                with suppress(*self._agent.nixl.errors):
                    self._agent.deregister(call.registration)
            if call.place.kind == "FILE":
                os.close(call.place.device)

    def close(self) -> None:
        """Ends the agent, once nothing moves any more; the pools may be freed afterwards."""
        deadline = monotonic() + self.timeout_seconds
        self._give_back()
        while self._kept and monotonic() < deadline:
            sleep(POLL_SECONDS)
            self._give_back()
        # what has not stopped ends with the agent
        self._agent.close(self.timeout_seconds)
        for call in self._kept:
            if call.place.kind == "FILE":
                os.close(call.place.device)
        self._kept.clear()

    def __enter__(self) -> Offloader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
