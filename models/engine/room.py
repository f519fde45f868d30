"""How long a sequence an engine has blocks for at the moment, for those who choose an engine."""

from __future__ import annotations

import numpy as np

from blockstride.models.engine.block_manager import BlockManager

STEP = 16
"""Tokens that lengths are told apart by."""

SHORT = 1 << 17
"""Tokens from which on they are told apart by powers of two: a model of states alone has no end."""


class Room:
    """Looks up, for the blocks that are free, the longest sequence that they hold.

    Args:
        blocks: Owner of the blocks.
        max_len: Most tokens of a sequence.
        chunk: Most tokens of one that are computed at once.
    """

    def __init__(self, blocks: BlockManager, max_len: int, chunk: int) -> None:
        self._blocks = blocks
        powers = [1 << bit for bit in range(SHORT.bit_length() - 1, max_len.bit_length())]
        steps = np.arange(0, min(max_len, SHORT), STEP)
        self._lengths = np.array([*steps, *(n for n in powers if n < max_len), max_len])
        most = blocks.most_held(self._lengths, np.minimum(self._lengths, chunk))
        # a state takes its block whatever the length, and no tokens take none
        most[0] = 0
        self._needed = np.ascontiguousarray(most.T)

    @property
    def num_tokens(self) -> int:
        """Tokens of one more sequence, in steps of `STEP` up to `SHORT`."""
        if not self._blocks.has_row:
            return 0
        pairs = zip(self._needed, self._blocks.num_free, strict=True)
        fitting = min(int(np.searchsorted(needed, free, "right")) for needed, free in pairs)
        return int(self._lengths[fitting - 1])
