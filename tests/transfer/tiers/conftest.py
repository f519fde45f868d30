"""Engines of ranks in this process, with an offloader each."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from blockstride.layouts import KVCacheLayout
from blockstride.transfer import EngineTransferInfo
from blockstride.transfer.tiers import Offloader, StoredCache
from tests.transfer.support import NUM_TOKENS, HandOver, Side, storages

SAVES = Side(4, 2, 4, KVCacheLayout("LBNHC"), "unified", 4, True, "DS").engine()
LOADS = Side(4, 2, 2, KVCacheLayout("BHLNC"), "split", 16, False, "SD").engine()


def tensors(memory: Mapping[int, np.ndarray]) -> dict[int, Tensor]:
    """The same bytes, as pools are given."""
    return {pool: torch.from_numpy(part.view(np.int8)) for pool, part in memory.items()}


class Hands:
    """A sequence that one engine saves and another one loads.

    Attributes:
        case: Both engines, their blocks, and what the loading one should get.
    """

    def __init__(self, case: HandOver) -> None:
        self.case, self.request = case, case.request()
        self._stack = ExitStack()
        self._savers: dict[int, Offloader] = {}
        self._loaders: dict[int, tuple[dict[int, np.ndarray], Offloader]] = {}

    def offloader(
        self, engine: EngineTransferInfo, rank: int, memory: Mapping[int, np.ndarray], **options
    ) -> Offloader:
        """An offloader that is closed at the end of the test."""
        return self._stack.enter_context(Offloader(engine, rank, tensors(memory), **options))

    def save(self, store: StoredCache, ranks: range | None = None) -> None:
        """Writes the parts of ranks, of all of them by default."""
        engine = self.case.remote
        for rank in ranks or range(engine.world_size):
            if rank not in self._savers:
                self._savers[rank] = self.offloader(engine, rank, self.case.source(rank))
            self._savers[rank].write(store, self.request.remote)

    def load(self, store: StoredCache, rank: int) -> dict[int, np.ndarray]:
        """What the storages of a loading rank hold afterwards."""
        if rank not in self._loaders:
            memory = storages(self.case.local, rank)
            self._loaders[rank] = memory, self.offloader(self.case.local, rank, memory)
        got, offloader = self._loaders[rank]
        for pool, memory in storages(self.case.local, rank).items():
            got[pool][:] = memory
        offloader.read(store, self.request.local)
        return got

    def check(self, store: StoredCache, ranks: range | None = None) -> None:
        """Loads into every rank, or some: what it needs is there, and nothing else was touched.

        The rest of a block may come along, and is zero where the engine that saved had none.
        """
        for rank in ranks or range(self.case.local.world_size):
            got = self.load(store, rank)
            least, most = self.case.expected(rank)
            for pool, memory in got.items():
                # by elements, of which no byte may look like poison by chance
                rest = (least[pool] != most[pool]).reshape(-1, 2).any(1).repeat(2)
                rest &= (memory == most[pool]) | (memory == 0)
                right = (memory == least[pool]) | rest
                assert right.all(), f"rank {rank}, pool {pool}: {np.flatnonzero(~right)[:8]}"

    def close(self) -> None:
        """Ends all offloaders."""
        self._stack.close()


@contextmanager
def hands_of(case: HandOver) -> Iterator[Hands]:
    """Hands that let go at the end."""
    hands = Hands(case)
    try:
        yield hands
    finally:
        hands.close()


@pytest.fixture
def hands():
    """A sequence from an engine of four ranks to one of two that differs in all it may."""
    with hands_of(HandOver(LOADS, SAVES, NUM_TOKENS)) as both:
        yield both
