"""Admission: whether a request that waits may run beside those that run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.request import Request

BUDGET = 0.1
"""Share of all tokens needed that bets may make the engine compute again."""

HEADROOM = 1.5
"""A bet takes answers to be so much longer than those before them were."""

SMOOTHING = 0.1
"""Weight of the last answer in the mean of their lengths."""


class Admission:
    """Admits requests that can finish without losing their blocks to others.

    That is sure when the blocks that are free, and those that admitted requests hold, are enough
    for all of them at their greatest lengths. It is more than most need, too: answers tend to end
    before they must. So a request may be admitted on a bet as well, that all answers take the share
    of what they are allowed that earlier ones took. A bet that is lost means computing a request
    again, at most all tokens of it, its stake; the stakes of all bets and what was lost before stay
    within a budget. A request that was preempted is admitted again only when it is sure to keep its
    blocks.

    Args:
        blocks: Owner of the blocks.
        chunk: Most tokens of one request in a step.
    """

    def __init__(self, blocks: BlockManager, chunk: int) -> None:
        self._blocks, self._chunk = blocks, chunk
        self._stakes: dict[int, int] = {}
        self._num_computed = self._num_lost = 0
        self._share = 1.0

    def admits(self, request: Request, admitted: Sequence[Request]) -> bool:
        """Whether a request may run beside those that do; one alone always may."""
        if not admitted:
            return True
        everybody = [*admitted, request]
        held = self._blocks.num_held([each.request_id for each in admitted])
        available = np.array(self._blocks.num_free) + held
        if self._fit(everybody, 1.0, available):
            return True
        share = HEADROOM * self._share
        if request.num_preemptions or share >= 1 or not self._can_stake(request):
            return False
        is_likely = self._fit(everybody, share, available)
        if is_likely:
            self._stakes[request.request_id] = request.max_len
        return is_likely

    def _can_stake(self, request: Request) -> bool:
        at_risk = self._num_lost + sum(self._stakes.values()) + request.max_len
        return at_risk <= BUDGET * (self._num_computed - self._num_lost)

    def _fit(self, requests: Sequence[Request], share: float, available: np.ndarray) -> bool:
        """Whether all fit at the lengths that they reach with a share of what they are allowed."""
        known = np.array([request.num_tokens for request in requests])
        # the last token is never cached
        longest = np.array([request.max_len - 1 for request in requests])
        leaves = np.array([request.hands_over for request in requests])
        more = np.where(leaves, 0, np.ceil(share * (longest - known)))
        chunks = np.minimum([request.num_uncached for request in requests], self._chunk)
        most = self._blocks.most_held(known + more.astype(np.int64), np.maximum(chunks, 1))
        return bool((most.sum(0) <= available).all())

    def on_computed(self, num_tokens: int) -> None:
        """So many tokens are computed in a step."""
        self._num_computed += num_tokens

    def on_preempted(self, request: Request) -> None:
        """A request is about to lose its blocks."""
        self._num_lost += request.num_cached
        self._stakes.pop(request.request_id, None)

    def on_left(self, request: Request) -> None:
        """A request isn't admitted any more, as it has ended or runs elsewhere."""
        self._stakes.pop(request.request_id, None)
        if request.finish_reason is not None and request.output_ids:
            share = len(request.output_ids) / (request.max_len - len(request.prompt_ids))
            self._share += SMOOTHING * (share - self._share)
