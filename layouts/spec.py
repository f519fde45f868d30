"""A cache spec: what one layer caches, as data. Everything else is derived from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.page import Page, Segment

# not typing.Self, which beartype accepts in decorated classes only
Spec = TypeVar("Spec", bound="CacheSpec")
Views = TypeVar("Views")
# one number, or one a sequence
Count = TypeVar("Count", int, Int64[np.ndarray, " num_seqs"])


@dataclass(frozen=True)
class CacheSpec(ABC, Generic[Views]):
    """The cache of one layer.

    A spec is written for the whole model; `tp_shard` gives the part of one rank. Nothing asks what
    kind of layer it serves: whether a page grows with its tokens follows from a token axis, and how
    long a block is needed from `window`. `Views` is what a layer of this kind binds.

    Attributes:
        kind: What people call it (`full attention`, `mamba-1`); shown, never branched upon.
        segments: The arrays of a page of one token.
        window: Number of last tokens that are ever read again; None for all of them.
        tp_size: Tensor-parallel ranks among which the layer is cut.
        tp_rank: The rank whose part this is.
    """

    kind: str
    segments: tuple[Segment, ...]
    window: int | None = None
    tp_size: int = 1
    tp_rank: int = 0

    def __post_init__(self) -> None:
        expect(
            self.window is None or self.window > 0,
            "window",
            "None or a positive count",
            self.window,
        )
        self.page(1)

    @property
    def has_tokens(self) -> bool:
        """Whether a page holds tokens; otherwise it holds one state, whatever its block size."""
        return any(axis.logical == "N" for s in self.segments for axis in s.whole.axes)

    def page(self, block_size: int) -> Page:
        """The page of a block of `block_size` tokens."""
        expect(block_size > 0, "block_size", "a positive number of tokens", block_size)
        return Page(
            tuple(
                replace(s, fields=tuple(f.with_tokens(block_size) for f in s.fields))
                for s in self.segments
            )
        )

    def tp_shard(self: Spec, tp_rank: int, tp_size: int) -> Spec:
        """The spec of one rank: every sharded field keeps its interval of the global axis.

        Raises:
            ValueError: A field can't be cut into `tp_size`, the rank is out of range, or the spec
                is a part already.
        """
        expect(tp_size >= 1, "tp_size", "at least 1", tp_size)
        expect(0 <= tp_rank < tp_size, "tp_rank", f"0 to {tp_size - 1}", tp_rank)
        expect(
            self.tp_size == 1, "spec", "the whole model's", f"rank {self.tp_rank} of {self.tp_size}"
        )
        segments = tuple(
            replace(s, fields=tuple(f.tp_shard(tp_rank, tp_size) for f in s.fields))
            for s in self.segments
        )
        return replace(self, segments=segments, tp_size=tp_size, tp_rank=tp_rank)

    def live_blocks(self, num_tokens: int, block_size: int) -> range:
        """Logical blocks that a sequence of `num_tokens` must keep, by position in its block table.

        A state needs one block, which is overwritten in place; attention needs the blocks of all
        its tokens, or of the last `window` of them.
        """
        if num_tokens == 0:
            return range(0)
        if not self.has_tokens:
            return range(1)
        # the next token reads `window` tokens, itself included
        first = 0 if self.window is None else max(0, num_tokens + 1 - self.window)
        return range(min(first, num_tokens - 1) // block_size, -(-num_tokens // block_size))

    def peak_blocks(self, num_tokens: int, block_size: int) -> int:
        """Most blocks that a sequence keeps at once while it grows to `num_tokens`.

        A window that straddles a block boundary keeps one block more than it does a little later:
        a pool must have room for that moment.
        """
        if not self.has_tokens:
            return min(num_tokens, 1)
        blocks = -(-num_tokens // block_size)
        return blocks if self.window is None else min(blocks, self.window_blocks(block_size, 1))

    def window_blocks(self, block_size: int, chunk: Count) -> Count:
        """Most blocks that `chunk` new tokens read and write, where there is a window."""
        assert self.window is not None, "whoever asks has looked"
        # the first new token reads the whole of its own window, and the block of the token before
        # it stays, as it may have room; at worst, the last of all these tokens begins a block
        return 1 - (2 - max(self.window, 2) - chunk) // block_size

    @property
    def token_bytes(self) -> int:
        """Bytes that one more token costs, without padding; 0 for a state."""
        if not self.has_tokens:
            return 0
        return sum(s.nbytes for s in self.segments)

    @abstractmethod
    def bind_kv_cache(self, raw: Tensor) -> Views:
        """Typed views of a layer's raw storage, made by its pool, for its kernels."""
