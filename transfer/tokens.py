"""Tokens: which of them two ranks share, piece by piece, as intervals of a repeating period."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class TokenAxis(NamedTuple):
    """How one rank keeps the tokens of a sequence.

    Attributes:
        block_size: Tokens that one block holds on this rank.
        run_size: Tokens after which their address may jump; a divisor of `block_size`.
        cp_rank: The rank that this is among those that tokens are dealt to.
        cp_size: Number of those ranks.
        interleave: Consecutive tokens that go to one rank.
    """

    block_size: int
    run_size: int
    cp_rank: int = 0
    cp_size: int = 1
    interleave: int = 1

    @property
    def span(self) -> int:
        """Tokens of a sequence that one block id stands for, over all ranks."""
        return self.block_size * self.cp_size

    def intervals(self, period: int) -> list[tuple[int, int, int]]:
        """Runs of consecutive tokens, as (first of the sequence, first on this rank, size)."""
        held = period // self.cp_size
        deal = self.interleave if self.cp_size > 1 else held
        cuts = sorted({*range(0, held, deal), *range(0, held, self.run_size), held})
        stride, shift = deal * self.cp_size, deal * self.cp_rank
        return [
            (first // deal * stride + shift + first % deal, first, stop - first)
            for first, stop in pairwise(cuts)
        ]

    def positions(self, tokens: Int64[np.ndarray, " tokens"]) -> Int64[np.ndarray, " held"]:
        """Where those of `tokens` that this rank holds are among all that it holds."""
        mine = tokens[tokens // self.interleave % self.cp_size == self.cp_rank]
        turn = self.interleave * self.cp_size
        return mine // turn * self.interleave + mine % self.interleave


class TokenPiece(NamedTuple):
    """Consecutive tokens that lie in one run of one block on both sides.

    Attributes:
        start: First token, from the start of the period.
        size: Number of tokens.
        local_block: Block of the period on the local side.
        local_token: First token within that block.
        remote_block: Block of the period on the remote side.
        remote_token: First token within that block.
    """

    start: int
    size: int
    local_block: int = 0
    local_token: int = 0
    remote_block: int = 0
    remote_token: int = 0


@lru_cache(maxsize=4096)
def common_pieces(local: TokenAxis, remote: TokenAxis) -> tuple[int, tuple[TokenPiece, ...]]:
    """Cuts the tokens that both ranks hold at every boundary of either.

    The pattern repeats after the least common multiple of what their blocks span: block sizes need
    not divide each other.

    Returns:
        The period in tokens, and its pieces in order.
    """
    period = lcm(local.span, remote.span)
    ours, theirs = local.intervals(period), remote.intervals(period)
    pieces, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        (a, a_held, a_size), (b, b_held, b_size) = ours[i], theirs[j]
        start, stop = max(a, b), min(a + a_size, b + b_size)
        if start < stop:
            local_block, local_token = divmod(a_held + start - a, local.block_size)
            remote_block, remote_token = divmod(b_held + start - b, remote.block_size)
            pieces.append(
                TokenPiece(
                    start, stop - start, local_block, local_token, remote_block, remote_token
                )
            )
        i, j = (i + 1, j) if a + a_size <= b + b_size else (i, j + 1)
    return period, tuple(pieces)
