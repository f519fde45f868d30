"""A stored cache: one sequence's blocks in an order that knows no rank.

To the planner it is an engine of one rank, whose blocks are numbered in the order of the sequence:
heads outermost within a block, then layers, so that whatever range of heads another engine's rank
holds is one run of each block. Saving is that engine reading from the ranks of the one that saves,
loading is the other way round, and nothing here computes an offset within a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from blockstride.checks import expect
from blockstride.layouts import NULL_BLOCK, CacheGroup, KVCacheLayout, group_layers
from blockstride.transfer.argument_types import expect_type, whole
from blockstride.transfer.compatibility import expect_fingerprint, expect_same_model
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.mapping import compute_tp_mapping
from blockstride.transfer.request import BlockIds

CANONICAL_LAYOUT = KVCacheLayout("BHLNC")
CANONICAL_ID = "stored cache"


def stored_blocks(
    group: CacheGroup, block_size: int, num_tokens: int, num_states: int, start: int = 0
) -> range:
    """Positions of a group's blocks that are stored: those that must live, or one a state."""
    if not group.spec.has_tokens:
        return range(num_states)
    live = group.spec.live_blocks(num_tokens, block_size)
    # the first one whole, where only its last tokens are asked for
    first = live.stop if start == num_tokens else start // block_size
    return range(max(live.start, first), live.stop)


def sizes_to_store(
    engine: object, num_tokens: object, num_states: object, start: object = 0
) -> tuple[int, int, int]:
    """Tokens and states of a sequence that is to be stored, and the tokens before what is.

    Raises:
        ValueError: No token, fewer than no states, more tokens before than there are, or an engine
            without a fingerprint of its model.
        TypeError: An argument of another type.
    """
    expect_type(engine, "engine", EngineTransferInfo)
    assert isinstance(engine, EngineTransferInfo), "checked above"
    expect_fingerprint(engine)
    tokens, first = whole(num_tokens, "num_tokens", 1), whole(start, "start")
    expect(first <= tokens, "start", f"at most {tokens}, the tokens", first)
    return tokens, whole(num_states, "num_states"), first


def canonical_engine(
    engine: EngineTransferInfo, num_tokens: int, num_states: int = 1, start: int = 0
) -> EngineTransferInfo:
    """The engine of one rank that just holds one sequence of another engine.

    Args:
        engine: The other engine, whose specs and block size it has.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps: 1, more with snapshots, or none.
        start: Tokens before those that are stored.

    Raises:
        ValueError: No token, fewer than no states, or more tokens before than there are.
    """
    expect(num_tokens > 0, "num_tokens", "at least 1", num_tokens)
    expect(num_states >= 0, "num_states", "at least 0", num_states)
    expect(0 <= start <= num_tokens, "start", f"from 0 to {num_tokens}, the tokens", start)
    groups = group_layers(engine.specs, "split")
    sizes = engine.block_size, num_tokens, num_states, start
    return EngineTransferInfo(
        CANONICAL_ID,
        engine.specs,
        CANONICAL_LAYOUT,
        "split",
        engine.block_size,
        tuple(NULL_BLOCK + 1 + len(stored_blocks(group, *sizes)) for group in groups),
        model_fingerprint=engine.model_fingerprint,
    )


def arrange(engine: EngineTransferInfo, start: int) -> tuple[dict[int, int], int]:
    """Puts the pools of a canonical engine one after the other.

    Nobody touches a null block, so that of a pool lies on whatever comes before the pool. Small
    blocks come first, since only the first null block may find nothing to lie on.

    Args:
        engine: The engine.
        start: Where free space begins, in bytes.

    Returns:
        Pool -> where its null block begins; and where everything ends.
    """
    first, end = {}, start
    for pool in sorted(range(len(engine.block_bytes)), key=engine.block_bytes.__getitem__):
        size = engine.block_bytes[pool]
        first[pool] = max(0, end - size)
        end = first[pool] + size * engine.num_blocks[pool]
    return first, end


@dataclass(frozen=True)
class Place:
    """Where the bytes of a stored cache are, in NIXL's terms.

    Attributes:
        kind: Kind of memory.
        backend: The plugin that reaches it.
        device: Device number; of a file its descriptor.
        addresses: Pool -> address of its null block; in a file, its offset.
        start: Address of the first byte of all.
        nbytes: Size of all.
    """

    kind: Literal["DRAM", "FILE"]
    backend: Literal["UCX", "POSIX"]
    device: int
    addresses: Mapping[int, int]
    start: int
    nbytes: int


def writing_ranks(canonical: EngineTransferInfo, engine: EngineTransferInfo) -> tuple[int, ...]:
    """Ranks of an engine that a stored cache takes anything from: of replicas, one."""
    expect_same_model(canonical, engine)
    return compute_tp_mapping(canonical, 0, engine).all_source_ranks


class StoredCache(ABC):
    """What is stored of one sequence.

    Args:
        engine: What `canonical_engine` made of the engine that saved it.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.
        start: Tokens before those that are stored.
    """

    def __init__(
        self, engine: EngineTransferInfo, num_tokens: int, num_states: int, start: int = 0
    ) -> None:
        self.engine, self.num_tokens, self.num_states = engine, num_tokens, num_states
        self.start = start

    @cached_property
    def blocks(self) -> list[BlockIds]:
        """Its blocks, a table for each group of its engine: in order, from 1."""
        sizes = self.engine.block_size, self.num_tokens, self.num_states, self.start
        tables = []
        for group in self.engine.groups:
            positions = stored_blocks(group, *sizes)
            ids = NULL_BLOCK + 1 + np.arange(len(positions), dtype=np.int32)
            tables.append(BlockIds(ids, positions.start))
        return tables

    def first_blocks(self, num_tokens: int) -> list[BlockIds]:
        """The blocks of its first tokens, as many as are asked for.

        Raises:
            ValueError: More tokens than there are, none that are stored, or not all of a window.
        """
        most, least = self.num_tokens, min(self.start + 1, self.num_tokens)
        expect(least <= num_tokens <= most, "num_tokens", f"from {least} to {most}", num_tokens)
        tables = []
        for group, blocks in zip(self.engine.groups, self.blocks, strict=True):
            spec, count = group.spec, len(blocks.ids)
            if spec.has_tokens and num_tokens < most:
                is_whole = spec.window is None
                expect(is_whole, "num_tokens", f"{most}, where windows are stored", num_tokens)
                count = max(0, -(-num_tokens // self.engine.block_size) - blocks.first)
            tables.append(BlockIds(blocks.ids[:count], blocks.first))
        return tables

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where its bytes are.

        Raises:
            ValueError: It is closed.
        """

    @abstractmethod
    def expect_readable(self) -> None:
        """Raises unless every rank has written its part and the bytes are still those."""

    @abstractmethod
    def writing(self, rank: int) -> AbstractContextManager[None]:
        """Held while a rank of the engine that saves writes its part, noted at the end.

        A part that failed counts as missing, and so does the whole cache from then on: NIXL has no
        cancel, and may still be at work.

        Raises:
            ValueError: No rank may write now.
        """


def expect_all_written(missing: Iterable[int]) -> None:
    """Raises `ValueError` if the parts of any ranks are missing."""
    ranks = [*missing]
    expect(not ranks, "stored cache", "the parts of all ranks", f"none of ranks {ranks}")


def expect_no_failure(failed: bool) -> None:
    """Raises `ValueError` if a part failed, as NIXL may still write to it."""
    wanted = "one that no write has failed of (make another)"
    expect(not failed, "stored cache", wanted, "one that may still be written to")
