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
from typing import Any

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_type, names, whole
from blockstride.transfer.connector.description import addresses
from blockstride.transfer.connector.errors import TransferError
from blockstride.transfer.connector.parts import Region
from blockstride.transfer.connector.posting import Nixl, Peer, Posting, PreparedCopy
from blockstride.transfer.copy_plan import CopyPlan, Side
from blockstride.transfer.device import expect_shareable

WARM_BYTES = 64


class Registration:
    """Memory that NIXL may read and write, by pool."""

    def __init__(self, regions: Mapping[int, Region], handle: Any) -> None:
        self.regions = dict(regions)
        self.handle = handle


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
        self.memory = "DRAM"
        self._peers: dict[str, Peer] = {}
        self._registrations: list[Registration] = []
        self._scratch = torch.zeros(WARM_BYTES, dtype=torch.int8)
        self.register({0: self._scratch})

    @property
    def metadata(self) -> bytes:
        """What a peer's `connect` takes, for the memory that is registered now."""
        return self.nixl.agent.get_agent_metadata()

    @property
    def registered_bytes(self) -> int:
        """Bytes of all regions."""
        regions = (region for reg in self._registrations for region in reg.regions.values())
        return sum(region.nbytes for region in regions) - WARM_BYTES

    def register(self, storages: Mapping[int, Tensor]) -> Registration:
        """Makes memory known, each storage once, whatever views of it are given.

        Args:
            storages: Pool -> its bytes, dense, all on one device.

        Raises:
            ValueError: Views with gaps, memory on several devices, or memory of a GPU that other
                processes can't reach.
        """
        expect_shareable(storages)
        regions, owners = {}, {}
        for pool, storage in storages.items():
            expect(storage.is_contiguous(), f"storage {pool}", "dense bytes", storage.stride())
            cuda = storage.is_cuda
            device = storage.get_device() if cuda else 0
            nbytes, memory = storage.numel() * storage.element_size(), "VRAM" if cuda else "DRAM"
            regions[pool] = Region(pool, storage.data_ptr(), nbytes, device, memory)
            whole = storage.untyped_storage()
            owners[whole.data_ptr()] = (whole.data_ptr(), whole.nbytes(), device, "")
            self.memory = memory
        handle = (
            self.nixl.agent.register_memory(list(owners.values()), self.memory) if owners else None
        )
        registration = Registration(regions, handle)
        self._registrations.append(registration)
        return registration

    def deregister(self, registration: Registration) -> None:
        """Makes NIXL forget memory, which no posting may use."""
        if registration in self._registrations:
            self._registrations.remove(registration)
            if registration.handle is not None:
                self.nixl.agent.deregister_memory(registration.handle)

    def connect(self, metadata: bytes, prefix: str) -> str:
        """Makes a peer known, with the memory that it has registered by now.

        Args:
            metadata: Its own `metadata`. It comes from a sealed message: NIXL doesn't survive all
                forgeries.
            prefix: What its name must begin with.

        Returns:
            Its name, of which there is one more user.

        Raises:
            TransferError: Metadata that NIXL refuses, or of another agent.
        """
        with self.nixl.about(prefix):
            name = self.nixl.agent.add_remote_agent(metadata)
        name = name.decode() if isinstance(name, bytes) else name
        if not name.startswith(prefix):
            if name not in self._peers:
                self.nixl.agent.remove_remote_agent(name)
            raise TransferError(f"metadata: expected an agent {prefix}..., got {name!r}")
        self._peers.setdefault(name, Peer(name))
        self._peers[name].users += 1
        return name

    def warm(self, name: str, region: Region) -> Posting:
        """Connects to a peer and reads a few bytes, which the first request would pay for."""
        peer = self._peers[name]
        size = min(WARM_BYTES, region.nbytes)
        kind = "DRAM"
        with self.nixl.about(name):
            self.nixl.agent.make_connection(name)
            describe = self.nixl.agent.get_xfer_descs
            mine = describe([(self._scratch.data_ptr(), size, 0)], kind)
            theirs = describe([(region.address, size, region.device)], region.memory)
            handle = self.nixl.agent.initialize_xfer("READ", mine, theirs, name, b"")
        return Posting(self.nixl, handle, peer)

    def prepare(
        self,
        copy: CopyPlan,
        side: Side,
        mine: Mapping[int, Region],
        name: str,
        theirs: Mapping[int, Region],
    ) -> PreparedCopy:
        """Hands the rows of a plan to NIXL.

        Args:
            copy: The plan.
            side: Which end of it is here.
            mine: Registered regions of that end.
            name: The peer at the other end.
            theirs: Regions of the other end.

        Raises:
            TransferError: Rows outside the memory that either agent has registered.
        """
        peer = self._peers[name]
        peer.memory = next((region.memory for region in theirs.values()), peer.memory)
        ends: dict[Side, Mapping[int, Region]] = {side: mine}
        ends["remote" if side == "local" else "local"] = theirs
        rows: dict[Side, Any] = {}
        for end, regions in ends.items():
            device = next((region.device for region in regions.values()), 0)
            rows[end] = copy.rows(end, addresses(regions), device)
        return PreparedCopy(self.nixl, peer, side, rows, self.memory)

    def progress(self) -> None:
        """Lets NIXL work, for peers as well as for own postings; drops what peers send unasked."""
        for peer in list(self._peers.values()):
            for posting in list(peer.unfinished):
                posting.poll()
            if peer.users == 0 and not peer.unfinished:
                self._forget(peer)
        with suppress(*self.nixl.errors):
            self.nixl.agent.get_new_notifs()

    def unfinished(self) -> int:
        """Postings that have not stopped."""
        return sum(len(peer.unfinished) for peer in self._peers.values())

    @property
    def num_peers(self) -> int:
        """Peers that are known."""
        return len(self._peers)

    def disconnect(self, name: str) -> None:
        """One user less; the last one's peer is forgotten as soon as its postings have stopped."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.users -= 1
            if peer.users == 0 and not peer.unfinished:
                self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        # lists before the peer that they belong to
        for prepared in peer.lists:
            prepared.release()
        # a peer that broke the connection is unknown to NIXL already
        with suppress(*self.nixl.errors):
            self.nixl.agent.remove_remote_agent(peer.name)
        self._peers.pop(peer.name, None)

    def close(self, grace_seconds: float) -> None:
        """Ends the agent; memory may be freed afterwards.

        Args:
            grace_seconds: How long postings may take to stop. Ending an agent stops the rest.
        """
        deadline = perf_counter() + grace_seconds
        while self.unfinished() and perf_counter() < deadline:
            self.progress()
        for peer in list(self._peers.values()):
            self._forget(peer)
        for registration in list(self._registrations):
            with suppress(*self.nixl.errors):
                self.deregister(registration)
        # with it ends all that NIXL does
        self.nixl.agent = None
