"""Scheduler: which requests run in the next step, and how many of their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.request import Request


@dataclass(frozen=True)
class Scheduled:
    """A request that runs in a step, and the tokens of it that are computed: the first uncached."""

    request: Request
    num_new: int


class Scheduler:
    """Continuous batching, first come first served.

    Every step first serves the running requests, oldest first, then admits waiting ones, until the
    step's tokens are used up. Prompts longer than a step or a chunk are computed piece by piece.
    When blocks run out the youngest running request is preempted: it loses its blocks and waits to
    be computed again, prompt and output alike.

    Args:
        blocks: Owner of the blocks.
        max_num_batched_tokens: Most tokens of a step.
        prefill_chunk: Most tokens of one request in a step.
        on_freed: Called with the freed blocks of each pool.
    """

    def __init__(
        self,
        blocks: BlockManager,
        max_num_batched_tokens: int,
        prefill_chunk: int,
        on_freed: Callable[[list[list[int]]], None],
    ) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._on_freed = on_freed

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Puts a request at the end of the queue."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Takes a finished or aborted request out, and its blocks back."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._on_freed(self.blocks.release(request.request_id))

    def detach(self, request: Request) -> None:
        """Takes a running request out, without its blocks."""
        self.running.remove(request)

    def attach(self, request: Request) -> None:
        """Lets a request run whose cached tokens are in blocks of its own."""
        self.running.append(request)

    def schedule(self) -> list[Scheduled]:
        """The next step; empty when nothing waits, or when its only request was just preempted."""
        step: list[Scheduled] = []
        budget = self.max_num_batched_tokens
        preempted = self.num_preemptions
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = self._count(request, budget)
            if self._reserve(request, count):
                step.append(Scheduled(request, count))
                budget -= count
                index += 1
            elif self._preempt_youngest() is request:
                break
        # who just lost its blocks would take them right back
        while self.waiting and budget > 0 and self.num_preemptions == preempted:
            request = self.waiting[0]
            count = self._count(request, budget)
            if not self._reserve(request, count):
                break
            self.running.append(self.waiting.popleft())
            step.append(Scheduled(request, count))
            budget -= count
        return step

    def _count(self, request: Request, budget: int) -> int:
        return min(request.num_uncached, self.prefill_chunk, budget)

    def _reserve(self, request: Request, count: int) -> bool:
        cached = request.num_cached
        return self.blocks.reserve(request.request_id, cached, cached + count)

    def _preempt_youngest(self) -> Request:
        request = self.running.pop()
        self._on_freed(self.blocks.release(request.request_id))
        request.num_cached = 0
        self.num_preemptions += 1
        self.waiting.appendleft(request)
        return request
