"""How long steps take on the device that computes them."""

from __future__ import annotations

from time import perf_counter

import torch

from blockstride.models.engine.report import EngineStats


class StepTimer:
    """Counts steps, and their seconds from the start of one until the device has done it.

    A GPU is still at work when a step returns that has sampled nothing, in the middle of a prompt.
    It isn't waited for: such a step's time is part of the next one's that brings tokens.

    Args:
        stats: Where to count.
        device: What computes the steps.
    """

    def __init__(self, stats: EngineStats, device: torch.device) -> None:
        self._stats, self._device = stats, device
        self._begin, self._open_tokens = 0.0, 0

    def start(self) -> None:
        """A step begins now."""
        if not self._open_tokens:
            self._begin = perf_counter()

    def stop(self, num_tokens: int, *, is_decode: bool, is_awaited: bool) -> None:
        """A step is over.

        Args:
            num_tokens: Tokens that it computed.
            is_decode: Whether all of them continue an answer.
            is_awaited: Whether the host has read what it brought.
        """
        self._stats.steps += 1
        self._open_tokens += num_tokens
        if is_awaited or self._device.type == "cpu":
            self._count(is_decode)

    def settle(self) -> None:
        """Counts steps that nobody has waited for; another kind of step begins now."""
        if self._open_tokens:
            synchronize(self._device)
            self._count(is_decode=False)
            self._begin = perf_counter()

    def _count(self, is_decode: bool) -> None:
        self._stats.count(self._open_tokens, perf_counter() - self._begin, is_decode)
        self._open_tokens = 0


def synchronize(device: torch.device) -> None:
    """Waits until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
