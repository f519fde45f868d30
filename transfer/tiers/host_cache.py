"""Stored caches in host memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.tiers.stored_cache import (
    Place,
    StoredCache,
    arrange,
    canonical_engine,
    expect_all_written,
    writing_ranks,
)


class HostCache(StoredCache):
    """One sequence's cache in host memory, zero until it is written.

    Args:
        engine: The engine that saves it.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.

    Raises:
        ValueError: No token, or no state.
    """

    def __init__(self, engine: EngineTransferInfo, num_tokens: int, num_states: int = 1) -> None:
        super().__init__(canonical_engine(engine, num_tokens, num_states), num_tokens, num_states)
        self._missing = set(writing_ranks(self.engine, engine))
        self._first, nbytes = arrange(self.engine, 0)
        # zeroed pages that the system maps when they are touched
        self._memory = np.zeros(nbytes, np.int8)

    @property
    def pools(self) -> dict[int, Tensor]:
        """Pool -> its bytes, null block included: those of an engine of one rank."""
        memory = torch.from_numpy(self._memory)
        sizes = self.engine.rank_cache(0).pool_bytes
        return {pool: memory[at : at + sizes[pool]] for pool, at in self._first.items()}

    @property
    def place(self) -> Place:
        """Where its bytes are."""
        start = self._memory.ctypes.data
        addresses = {pool: start + at for pool, at in self._first.items()}
        return Place("DRAM", "UCX", 0, addresses, start, self._memory.nbytes)

    def expect_readable(self) -> None:
        """Raises `ValueError` unless every rank has written its part."""
        expect_all_written(sorted(self._missing))

    def expect_writable(self) -> None:
        """A rank may write at any time, and again."""

    def mark_written(self, rank: int) -> None:
        """Takes note that a rank has written its part."""
        self._missing.discard(rank)
