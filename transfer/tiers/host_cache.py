"""Stored caches in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from blockstride.transfer.argument_types import expect_type
from blockstride.transfer.device import CPU
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.tiers.stored_cache import (
    Place,
    StoredCache,
    arrange,
    canonical_engine,
    expect_all_written,
    expect_no_failure,
    sizes_to_store,
    writing_ranks,
)


class HostCache(StoredCache):
    """One sequence's cache in host memory, zero until it is written.

    Args:
        engine: The engine that saves it.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.
        device: Where the pools are that it is filled from; for those of a GPU the memory is pinned,
            so that the GPU itself copies.

    Raises:
        ValueError: No token, no state, or an engine without a fingerprint of its model.
        TypeError: An argument of another type.
    """

    def __init__(
        self,
        engine: EngineTransferInfo,
        num_tokens: int,
        num_states: int = 1,
        device: torch.device = CPU,
    ) -> None:
        expect_type(device, "device", torch.device)
        sizes = sizes_to_store(engine, num_tokens, num_states)
        super().__init__(canonical_engine(engine, *sizes), *sizes)
        self._ranks = {*writing_ranks(self.engine, engine)}
        self._missing = {*self._ranks}
        self._failed = False
        self._first, nbytes = arrange(self.engine, 0)
        if device.type == "cuda":
            self._memory = torch.zeros(nbytes, dtype=torch.int8, pin_memory=True)
        else:
            # zeroed pages that the system maps when they are touched
            self._memory = torch.from_numpy(np.zeros(nbytes, np.int8))

    @property
    def pools(self) -> dict[int, Tensor]:
        """Pool -> its bytes, null block included: those of an engine of one rank."""
        sizes = self.engine.rank_cache(0).pool_bytes
        return {pool: self._memory[at : at + sizes[pool]] for pool, at in self._first.items()}

    @property
    def place(self) -> Place:
        """Where its bytes are."""
        start = self._memory.data_ptr()
        addresses = {pool: start + at for pool, at in self._first.items()}
        return Place("DRAM", "UCX", 0, addresses, start, len(self._memory))

    def expect_readable(self) -> None:
        """Raises `ValueError` unless every rank has written its part."""
        expect_no_failure(self._failed)
        expect_all_written(sorted(self._missing))

    @contextmanager
    def writing(self, rank: int) -> Iterator[None]:
        """Held while a rank writes its part, which it may do at any time, and again.

        Raises:
            ValueError: A part has failed before.
        """
        expect_no_failure(self._failed)
        self._missing |= {rank} & self._ranks
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        self._missing.discard(rank)
