"""Moving blocks between the pools of a rank and stored caches, by NIXL within this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from secrets import token_hex
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_seconds, expect_type, whole
from blockstride.transfer.compatibility import expect_fingerprint
from blockstride.transfer.connector.agent import TransferAgent
from blockstride.transfer.connector.chunks import Chunk, RowList, cut
from blockstride.transfer.connector.description import addresses, expect_plannable
from blockstride.transfer.connector.errors import DeadlineError, TransferError
from blockstride.transfer.connector.posting import Operation
from blockstride.transfer.copy_plan import CopyPlan, Side
from blockstride.transfer.device import device_of, expect_storages, on_device, wait_for_device
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.plan import EngineTransferPlan, generate_engine_transfer_plan
from blockstride.transfer.request import BlockIds, TransferRequest
from blockstride.transfer.tiers.stored_cache import Place, StoredCache
from blockstride.transfer.topology import TransferTopology

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


class _Lists(NamedTuple):
    """The descriptor lists of a plan, as NIXL keeps them.

    Attributes:
        rows: Local and remote rows.
        pools: The list of the pools.
        store: The list of the stored cache.
        pools_are: Which end of the plan the pools are.
    """

    rows: tuple[RowList, RowList]
    pools: Any
    store: Any
    pools_are: Side


@dataclass(eq=False)
class _Call:
    """What NIXL keeps of one call, until nothing of it moves any more.

    Attributes:
        place: The stored cache; of a file, a descriptor of our own, which stays open as long.
        registration: Of its memory; None before there is one.
        lists: Descriptor lists.
        handle: What moves; None between two chunks.
    """

    place: Place
    registration: Any = None
    lists: list[_Lists] = field(default_factory=list)
    handle: Any = None


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
        topology = TransferTopology(store.engine)
        topology.register_remote_engine(self.engine)
        plan = generate_engine_transfer_plan(topology, self.engine.engine_id)
        request = TransferRequest(store.num_tokens, store.blocks, blocks)
        with store.writing(self.rank):
            return self._run("WRITE", plan, request, "remote", store.place)

    def read(self, store: StoredCache, blocks: Sequence[BlockIds]) -> Moved:
        """Fills blocks of this rank from a stored sequence.

        Args:
            store: What is stored; no byte is read unless all of it is whole.
            blocks: The blocks to fill, a table for each group of the engine; blocks before the
                first of a table are present already.

        Raises:
            ValueError: A store that isn't whole or holds another model's caches, or block ids that
                can't be right.
            CacheFileError: A file of which a block is not what was written.
            TransferError: NIXL fails, or takes too long: the blocks hold anything.
        """
        expect_type(store, "store", StoredCache)
        expect_plannable(store.engine, self.engine)
        topology = TransferTopology(self.engine, self.rank)
        topology.register_remote_engine(store.engine)
        plan = generate_engine_transfer_plan(topology, store.engine.engine_id)
        request = TransferRequest(store.num_tokens, blocks, store.blocks)
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
        if place.memory == "FILE":
            memory = self._agent.memory
            expect(memory == "DRAM", "pools", "host memory, from which files are written", memory)
        specs = plan.reads(request)
        # kernels may still write what is saved, and what was freed and is to be filled
        wait_for_device(self._device)
        with on_device(self._device), self._agent.nixl.about(self._name), self._call(place) as call:
            for peer, read in zip(plan.peers, specs, strict=True):
                # a store has one rank; of those that a store reads from, one is here
                if pools_are == "local" or peer.remote_rank == self.rank:
                    lists = self._prepare(call, peer.wire, pools_are)
                    for chunk in cut(*lists.rows, read.wire, CHUNK_BYTES):
                        merged = self._move(operation, call, lists, chunk, deadline)
                        total = total.plus(chunk.nbytes, len(chunk.indices.local), merged)
        return total

    @contextmanager
    def _call(self, place: Place) -> Iterator[_Call]:
        """What a call needs of NIXL, given back at its end, or later if something still moves."""
        if place.memory == "FILE":
            place = replace(place, device=os.dup(place.device))
        call = _Call(place)
        self._kept.append(call)
        try:
            region = [(place.start, place.nbytes, place.device, "")]
            nixl = self._agent.nixl.agent
            call.registration = nixl.register_memory(region, place.memory, [place.backend])
            yield call
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Gives back what belongs to calls of which nothing moves any more."""
        nixl, errors = self._agent.nixl.agent, self._agent.nixl.errors
        for call in list(self._kept):
            if self._moves(call):
                continue
            self._kept.remove(call)
            if call.handle is not None:
                with suppress(*errors):
                    call.handle.release()
            for lists in call.lists:
                with suppress(*errors):
                    lists.pools.release()
                    lists.store.release()
            if call.registration is not None:
                with suppress(*errors):
                    nixl.deregister_memory(call.registration, [call.place.backend])
            if call.place.memory == "FILE":
                os.close(call.place.device)

    def _moves(self, call: _Call) -> bool:
        """Whether NIXL may still touch the memory of a call."""
        nixl = self._agent.nixl
        with suppress(*nixl.errors):
            return call.handle is not None and nixl.agent.check_xfer_state(call.handle) == "PROC"
        return False

    def _prepare(self, call: _Call, copy: CopyPlan, pools_are: Side) -> _Lists:
        """Hands the rows of a plan to NIXL."""
        store_is: Side = "remote" if pools_are == "local" else "local"
        regions, place = self._pools.regions, call.place
        device = next((region.device for region in regions.values()), 0)
        rows = {
            pools_are: copy.rows(pools_are, addresses(regions), device),
            store_is: copy.rows(store_is, place.addresses, place.device),
        }
        agent = self._agent
        prepare = agent.nixl.agent.prep_xfer_dlist
        lists = _Lists(
            (RowList(rows["local"]), RowList(rows["remote"])),
            prepare("NIXL_INIT_AGENT", rows[pools_are].astype(np.uint64), agent.memory),
            prepare(agent.name, rows[store_is].astype(np.uint64), place.memory),
            pools_are,
        )
        call.lists.append(lists)
        return lists

    def _move(
        self, operation: Operation, call: _Call, lists: _Lists, chunk: Chunk, deadline: float
    ) -> int:
        """Moves a chunk; returns the descriptors that NIXL made of it."""
        nixl, (mine, theirs) = self._agent.nixl.agent, chunk.indices
        if lists.pools_are == "remote":
            mine, theirs = theirs, mine
        handle = call.handle = nixl.make_prepped_xfer(
            operation, lists.pools, mine, lists.store, theirs, b"", [call.place.backend]
        )
        state = nixl.transfer(handle)
        while state == "PROC":
            if monotonic() > deadline:
                raise DeadlineError(
                    f"{operation}: expected an end within {self.timeout_seconds} s, got none",
                    peer=self._name,
                )
            sleep(POLL_SECONDS)
            state = nixl.check_xfer_state(handle)
        if state != "DONE":
            raise TransferError(f"NIXL: state {state}", peer=self._name)
        merged = int(nixl.get_xfer_telemetry(handle).descCount)
        handle.release()
        call.handle = None
        return merged

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
            if call.place.memory == "FILE":
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
