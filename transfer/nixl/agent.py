"""An agent: registered memory, known peers, and copies between them by NIXL.

It knows nothing of requests, leases or messages. One thread uses it, and nobody else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Annotated, Any, Literal, NamedTuple

import torch
from msgspec import Meta, Struct
from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_type, names, whole
from blockstride.transfer.copy_plan import CopyPlan, Side
from blockstride.transfer.device import expect_shareable
from blockstride.transfer.errors import TransferError
from blockstride.transfer.nixl.posting import Nixl, Peer, Posting, PreparedCopy, Rows

WARM_BYTES = 64

MemoryKind = Literal["DRAM", "VRAM", "FILE"]


class Memory(Struct, frozen=True, forbid_unknown_fields=True):
    """Where pools are, as NIXL is told; peers send it to each other.

    Attributes:
        kind: NIXL's name of the kind of memory: `DRAM`, `VRAM` or `FILE`.
        device: Device number; 0 for host memory, and the descriptor of a file.
        addresses: Pool -> address of its first byte; in a file, its offset.
        sizes: Pool -> its bytes.
    """

    kind: MemoryKind = "DRAM"
    device: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    addresses: dict[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0, le=2**63 - 1)]] = {}
    sizes: dict[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=1, le=2**63 - 1)]] = {}


class Registration(NamedTuple):
    """Memory that NIXL may read and write.

    Attributes:
        memory: Which.
        handle: NIXL's own; None where there is no byte.
        backends: Plugins that reach it; none: those of the agent.
    """

    memory: Memory
    handle: Any
    backends: tuple[str, ...] = ()


class TransferAgent:
    """A NIXL agent and all that belongs to it.

    Args:
        name: Unique among all agents, past and present.
        progress_thread: See `ConnectorSettings`.
        num_threads: Likewise.
        backends: NIXL plugins.

    Raises:
        ImportError: NIXL is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        progress_thread: bool = False,
        num_threads: int = 0,
        backends: tuple[str, ...] = ("UCX",),
    ) -> None:
        expect_type(name, "name", str)
        whole(num_threads, "num_threads")
        names(backends, "backends")
        api = import_module("nixl._api")
        if "NIXL_LOG_LEVEL" not in os.environ:
            # it would announce every agent on standard output
            logging.getLogger("nixl").setLevel(logging.WARNING)
        bindings = import_module("nixl._bindings")
        errors = tuple(
            value
            for key, value in vars(bindings).items()
            if key.endswith("Error") and isinstance(value, type) and issubclass(value, Exception)
        )
        config = api.nixl_agent_config(
            enable_prog_thread=progress_thread,
            capture_telemetry=True,
            num_threads=num_threads,
            backends=list(backends),
        )
        self.name = name
        self.nixl = Nixl(api.nixl_agent(name, config), errors)
        self.peers: dict[str, Peer] = {}
        self.registrations: list[Registration] = []
        self._scratch = torch.zeros(WARM_BYTES, dtype=torch.int8)
        self.register({0: self._scratch})

    @property
    def metadata(self) -> bytes:
        """What a peer's `connect` takes, for the memory that is registered now."""
        return self.nixl.agent.get_agent_metadata()

    def register(self, storages: Mapping[int, Tensor]) -> Registration:
        """Makes memory known, each storage once, whatever views of it are given.

        Args:
            storages: Pool -> its bytes, dense, all on one device.

        Raises:
            ValueError: Views with gaps, memory on several devices, or memory of a GPU that other
                processes can't reach.
        """
        expect_shareable(storages)
        addresses, sizes, owners = {}, {}, {}
        kind: MemoryKind = "DRAM"
        device = 0
        for pool, storage in storages.items():
            expect(storage.is_contiguous(), f"storage {pool}", "dense bytes", storage.stride())
            if storage.is_cuda:
                kind, device = "VRAM", storage.get_device()
            addresses[pool] = storage.data_ptr()
            sizes[pool] = storage.numel() * storage.element_size()
            whole = storage.untyped_storage()
            owners[whole.data_ptr()] = (whole.data_ptr(), whole.nbytes(), device, "")
        handle = self.nixl.agent.register_memory(list(owners.values()), kind) if owners else None
        return self._keep(Registration(Memory(kind, device, addresses, sizes), handle))

    def register_range(
        self, kind: MemoryKind, device: int, start: int, nbytes: int, backend: str
    ) -> Registration:
        """Makes a range of bytes known to one plugin, such as a file to POSIX.

        Args:
            kind: See `Memory`.
            device: Likewise.
            start: Address of its first byte.
            nbytes: Its size.
            backend: The plugin.

        Raises:
            TransferError: The plugin refuses it.
        """
        with self.nixl.about(backend):
            ranges = [(start, nbytes, device, "")]
            handle = self.nixl.agent.register_memory(ranges, kind, [backend])
        return self._keep(Registration(Memory(kind, device), handle, (backend,)))

    def _keep(self, registration: Registration) -> Registration:
        self.registrations.append(registration)
        return registration

    def deregister(self, registration: Registration) -> None:
        """Makes NIXL forget memory, which no posting may use."""
        known = [found for found in self.registrations if found is not registration]
        if len(known) < len(self.registrations):
            self.registrations = known
            if registration.handle is not None:
                backends = list(registration.backends)
                self.nixl.agent.deregister_memory(registration.handle, backends)

    def connect(self, metadata: bytes, prefix: str) -> Peer:
        """Makes a peer known, with the memory that it has registered by now.

        Args:
            metadata: Its own `metadata`. It comes from a sealed message: NIXL doesn't survive all
                forgeries.
            prefix: What its name must begin with.

        Returns:
            The peer, of which there is one more user.

        Raises:
            TransferError: Metadata that NIXL refuses, or of another agent.
        """
        with self.nixl.about(prefix):
            name = self.nixl.agent.add_remote_agent(metadata)
        name = name.decode() if isinstance(name, bytes) else name
        if not name.startswith(prefix):
            if name not in self.peers:
                self.nixl.agent.remove_remote_agent(name)
            raise TransferError(f"metadata: expected an agent {prefix}..., got {name!r}")
        peer = self.peers.setdefault(name, Peer(name))
        peer.users += 1
        return peer

    def itself(self) -> Peer:
        """This agent as a peer, for copies within this process; its user polls and releases it."""
        return Peer(self.name)

    def warm(self, peer: Peer, memory: Memory) -> Posting:
        """Connects to a peer and reads a few bytes, which the first request would pay for."""
        pool, address = next(iter(memory.addresses.items()))
        size = min(WARM_BYTES, memory.sizes[pool])
        with self.nixl.about(peer.name):
            self.nixl.agent.make_connection(peer.name)
            describe = self.nixl.agent.get_xfer_descs
            mine = describe([(self._scratch.data_ptr(), size, 0)], "DRAM")
            theirs = describe([(address, size, memory.device)], memory.kind)
            handle = self.nixl.agent.initialize_xfer("READ", mine, theirs, peer.name, b"")
        return Posting(self.nixl, handle, peer)

    def prepare(
        self,
        copy: CopyPlan,
        side: Side,
        mine: Memory,
        peer: Peer,
        theirs: Memory,
        backends: tuple[str, ...] = (),
    ) -> PreparedCopy:
        """Hands the rows of a plan to NIXL.

        Args:
            copy: The plan.
            side: Which end of it is here.
            mine: Registered memory of that end.
            peer: Who has the other end.
            theirs: Memory of the other end.
            backends: Plugins to choose from; none: those of the agent.

        Raises:
            TransferError: Rows outside the memory that either agent has registered.
        """
        local, remote = (mine, theirs) if side == "local" else (theirs, mine)
        rows: dict[Side, Rows] = {
            "local": copy.rows("local", local.addresses, local.device),
            "remote": copy.rows("remote", remote.addresses, remote.device),
        }
        return self.prepare_rows(side, rows, peer, (mine.kind, theirs.kind), backends)

    def prepare_rows(
        self,
        side: Side,
        rows: Mapping[Side, Rows],
        peer: Peer,
        kinds: tuple[str, str] = ("DRAM", "DRAM"),
        backends: tuple[str, ...] = (),
    ) -> PreparedCopy:
        """Hands strided rows to NIXL; see `PreparedCopy`."""
        return PreparedCopy(self.nixl, peer, side, rows, kinds, backends)

    def progress(self) -> None:
        """Lets NIXL work, for peers as well as for own postings; drops what peers send unasked."""
        for peer in list(self.peers.values()):
            if not peer.poll() and peer.users == 0:
                self._forget(peer)
        with suppress(*self.nixl.errors):
            self.nixl.agent.get_new_notifs()

    def unfinished(self) -> int:
        """Postings that have not stopped."""
        return sum(len(peer.unfinished) for peer in self.peers.values())

    def disconnect(self, peer: Peer) -> None:
        """One user less; after the last one a peer is forgotten once its postings have stopped."""
        peer.users -= 1
        if peer.users == 0 and not peer.unfinished:
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        # lists before the peer that they belong to
        peer.release()
        # a peer that broke the connection is unknown to NIXL already
        with suppress(*self.nixl.errors):
            self.nixl.agent.remove_remote_agent(peer.name)
        self.peers.pop(peer.name, None)

    def close(self, grace_seconds: float) -> None:
        """Ends the agent; memory may be freed afterwards.

        Args:
            grace_seconds: How long postings may take to stop. Ending an agent stops the rest.
        """
        deadline = perf_counter() + grace_seconds
        while self.unfinished() and perf_counter() < deadline:
            self.progress()
        for peer in list(self.peers.values()):
            self._forget(peer)
        for registration in list(self.registrations):
            with suppress(*self.nixl.errors):
                self.deregister(registration)
        # with it ends all that NIXL does
        self.nixl.agent = None
