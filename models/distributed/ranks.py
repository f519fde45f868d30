"""All ranks of an engine: how each comes to be, and how rank 0 has the others do what it does."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from blockstride.models.batch import StepBatch
from blockstride.models.distributed.heartbeat import STEP_SECONDS
from blockstride.models.distributed.messages import (
    Close,
    Forward,
    Meet,
    Outcome,
    Poison,
    Settled,
    Setup,
)
from blockstride.models.distributed.rank_transfers import Command, RankTransfers
from blockstride.models.engine.tiers.commands import TierCommand
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.loading import load_model
from blockstride.models.parallel import TensorParallel


def load_rank(setup: Setup) -> HybridModel:
    """This rank's part of the model."""
    if setup.device.startswith("cuda"):
        # what ranks tell each other goes through the current device
        torch.cuda.set_device(setup.device)
    return load_model(
        setup.path,
        setup.config,
        dtype=setup.dtype,
        device=setup.device,
        parallel=TensorParallel(setup.rank, setup.config.tp_size),
    )


def open_meeting(setup: Setup) -> tuple[str, Store]:
    """Where ranks find each other, which rank 0 tells them, and what it has of it."""
    if not setup.host:
        return "", _store("", setup)
    size = setup.config.tp_size
    store = TCPStore(setup.host, 0, size, is_master=True, wait_for_workers=False)
    return f"{setup.host}:{store.port}", store


def join_ranks(setup: Setup, address: str, store: Store | None = None) -> None:
    """Makes a group of all ranks; waits for those that come later.

    Args:
        setup: This rank.
        address: Where they find each other.
        store: What rank 0 has of it.
    """
    dist.init_process_group(
        "nccl" if setup.device.startswith("cuda") else "gloo",
        store=_store(address, setup) if store is None else store,
        rank=setup.rank,
        world_size=setup.config.tp_size,
        # a rank that is stopped misses its beats; one that compiles makes others wait
        timeout=timedelta(seconds=STEP_SECONDS),
    )


def _store(address: str, setup: Setup) -> Store:
    size = setup.config.tp_size
    if not address:
        return FileStore(f"{setup.folder}/{setup.engine_id}", size)
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), size, is_master=False, wait_for_workers=False)


class Ranks:
    """Has other ranks do what rank 0 does.

    Args:
        followers: Pipes to ranks 1, 2, ...

    Attributes:
        transfers: Hand-overs of rank 0; None when there are none.
    """

    transfers: RankTransfers | None = None

    def __init__(self, followers: Sequence[Connection]) -> None:
        self._followers = tuple(followers)

    def __len__(self) -> int:
        return len(self._followers) + 1

    def forward(self, batch: StepBatch) -> None:
        """Has followers compute a batch."""
        if self._followers:
            self._send(Forward.of(batch))

    def join(self, setup: Setup) -> None:
        """Has all make a group, if there are others."""
        if self._followers:
            address, store = open_meeting(setup)
            self._send(Meet(address))
            join_ranks(setup, address, store)

    def poison(self, blocks: Sequence[Sequence[int]]) -> None:
        """Has followers poison freed blocks."""
        self._send(Poison(blocks))

    def tier(self, command: TierCommand) -> None:
        """Has followers move blocks between their pools, host memory and files."""
        self._send(command)

    def tell(self, command: Command) -> None:
        """Has all ranks do their part of a hand-over."""
        self._send(command)
        if self.transfers is not None:
            self.transfers.do(command)

    def own_events(self) -> list[Outcome | Settled]:
        """What rank 0's part of hand-overs has brought."""
        return [] if self.transfers is None else self.transfers.events()

    def close(self) -> None:
        """Ends all but this process."""
        self._send(Close())
        if self.transfers is not None:
            self.transfers.close()

    def _send(self, message: Any) -> None:
        if self._followers:
            pickled = pickle.dumps(message)
            for follower in self._followers:
                follower.send_bytes(pickled)
