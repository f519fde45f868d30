"""Scheduler: which requests run in the next step, and how many of their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blockstride.models.engine.admission import Admission
from blockstride.models.engine.block_manager import BlockManager, Copy
from blockstride.models.engine.prefix_cache import PrefixCache
from blockstride.models.engine.request import Request

if TYPE_CHECKING:
    from blockstride.models.engine.tiers import Tiers

Fetch = Callable[[Request], object]


@dataclass(frozen=True)
class Scheduled:
    """A request that runs in a step, and the tokens of it that are computed: the first uncached.

    Attributes:
        request: The request.
        num_new: Its tokens.
        before: What is copied for it before they are computed: what others have left.
        after: What is copied afterwards, to be left for others.
    """

    request: Request
    num_new: int
    before: Sequence[Copy] = ()
    after: Sequence[Copy] = ()

    @property
    def stop(self) -> int:
        """Tokens of the request that are cached after the step."""
        return self.request.num_cached + self.num_new

    @property
    def scored(self) -> range:
        """Positions after which the log-probability of the prompt's next token is asked for."""
        return self.request.unscored(self.stop)


class Scheduler:
    """Continuous batching, first come first served.

    Requests wait in one queue, those whose caches come from elsewhere among them, and are admitted
    from its head by one rule (`Admission`): no later request overtakes an earlier one, and no
    running one lacks blocks because of one that waits. Every step serves the admitted requests,
    oldest first, until its tokens are used up; prompts longer than a step or a chunk are computed
    piece by piece. If blocks run out for all that, the youngest is preempted for an older one: it
    loses its blocks and waits to be computed again, prompt and output alike.

    Args:
        blocks: Owner of the blocks.
        max_num_batched_tokens: Most tokens of a step.
        prefill_chunk: Most tokens of one request in a step.
        on_freed: Called with the freed blocks of each pool.
        prefixes: What requests have computed that others may begin with; None to forget it.

    Attributes:
        waiting: Requests that are not admitted, first come first.
        running: Those that can be computed, oldest first.
        arriving: Those that have blocks which are being filled from elsewhere.
        aside: Those that wait for what they begin with to be brought back from a tier.
        tiers: Where that is; None where there are none.
    """

    tiers: Tiers | None = None

    def __init__(
        self,
        blocks: BlockManager,
        max_num_batched_tokens: int,
        prefill_chunk: int,
        on_freed: Callable[[list[list[int]]], None],
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefill_chunk = min(prefill_chunk, max_num_batched_tokens)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.arriving: list[Request] = []
        self.aside: list[Request] = []
        self.num_preemptions = 0
        self._admission = Admission(blocks, self.prefill_chunk)
        self._fetches: dict[int, Fetch] = {}
        self._step: list[Scheduled] = []
        self._on_freed = blocks.on_freed = on_freed
        self.prefixes = prefixes

    @property
    def has_work(self) -> bool:
        """Whether any request is to be computed, now or later."""
        return bool(self.waiting or self.running or self.aside)

    def add(self, request: Request, fetch: Fetch | None = None) -> None:
        """Puts a request at the end of the queue.

        Args:
            request: The request.
            fetch: Called when it has blocks for all its tokens but the last, which are to be
                filled from elsewhere beyond those that are `present`; `attach` says that they are.
                None: it is computed here.
        """
        if fetch is not None:
            self._fetches[request.request_id] = fetch
        self.waiting.append(request)

    def compute(self, request: Request) -> None:
        """Computes a request here after all, in its turn, that was to be fetched.

        It no longer owns the blocks that were to be filled.
        """
        self._fetches.pop(request.request_id, None)
        if request in self.arriving:
            self.detach(request)
            self.waiting.appendleft(request)

    def remove(self, request: Request) -> None:
        """Takes a finished or aborted request out, wherever it is, and its blocks back."""
        self._fetches.pop(request.request_id, None)
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.aside:
            self.aside.remove(request)
        else:
            self.detach(request)
            if self.prefixes is not None and request.finish_reason != "error":
                self.prefixes.donate(request)
        self._on_freed(self.blocks.release(request.request_id))

    def detach(self, request: Request) -> None:
        """Takes an admitted request out, without its blocks."""
        (self.running if request in self.running else self.arriving).remove(request)
        self._admission.on_left(request)

    def attach(self, request: Request) -> None:
        """Lets a request run whose blocks have been filled."""
        self.arriving.remove(request)
        request.num_cached = request.num_tokens - 1
        self.running.append(request)
        if self.prefixes is not None:
            self.prefixes.on_arrived(request)

    def admit(self) -> None:
        """Admits requests from the head of the queue, as long as they may run."""
        while self.waiting and self._admit_first():
            pass

    def _admit_first(self) -> bool:
        request = self.waiting[0]
        fetch = self._fetches.get(request.request_id)
        admitted = [*self.running, *self.arriving]
        if not (self.blocks.has_row and self._admission.admits(request, admitted)):
            return False
        if fetch is None and self.prefixes and self.prefixes.awaits(request, self.running):
            return False
        if fetch is None and self.tiers is not None and self.tiers.loads(request):
            self.aside.append(self.waiting.popleft())
            return True
        if fetch is not None:
            num_tokens = request.num_tokens - 1
            is_known = self.prefixes is not None and self.prefixes.adopt_tokens(request)
            has_blocks = is_known or self.blocks.reserve(request.request_id, num_tokens, num_tokens)
        else:
            is_known = self.prefixes is not None and self.prefixes.adopt(request)
            has_blocks = is_known or self.blocks.reserve(request.request_id, 0, 0)
        if not has_blocks:
            return False
        self.waiting.popleft()
        if fetch is None:
            self.running.append(request)
        else:
            del self._fetches[request.request_id]
            self.arriving.append(request)
            fetch(request)
        return True

    def resume(self, requests: Sequence[Request]) -> None:
        """Has requests be admitted next that have waited aside, if they still do."""
        for request in reversed(requests):
            if request in self.aside:
                self.aside.remove(request)
                self.waiting.appendleft(request)

    def schedule(self) -> list[Scheduled]:
        """The next step; empty when there is nothing to compute.

        It is also empty while the only request lacks blocks that are held for a while: for readers,
        or because something may still write to them.
        """
        if self.tiers is not None:
            self.resume(self.tiers.poll())
        self.admit()
        step: list[Scheduled] = []
        budget = self.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = self._reserve(request, budget)
            if count > 0:
                copies = tuple(self.blocks.copies(request.request_id))
                step.append(Scheduled(request, count, copies))
                budget -= count
            elif self.running[-1] is not request:
                self.preempt(self.running[-1])
                continue
            # the youngest waits with what it has: it loses that only to an older one
            index += 1
        self._admission.on_computed(self.max_num_batched_tokens - budget)
        if not step and self.tiers is not None:
            # what has come by then is of the next step
            self.resume(self.tiers.poll(self.tiers.patience))
        # what others may want comes after what these need
        self._step = [self._with_states_kept(scheduled) for scheduled in step]
        return self._step

    def _with_states_kept(self, scheduled: Scheduled) -> Scheduled:
        if self.prefixes is None or [scheduled.stop] != scheduled.request.keep_after[:1]:
            return scheduled
        return replace(scheduled, after=self.prefixes.room_for_states(scheduled.request))

    def on_computed(self) -> None:
        """The step is computed: requests have more in the cache, and some leave it for others."""
        step, self._step = self._step, []
        for scheduled in step:
            request = scheduled.request
            request.num_cached = scheduled.stop
            if scheduled.before:
                self.blocks.on_copied(request.request_id)
            if [request.num_cached] == request.keep_after[:1] and self.prefixes is not None:
                self.prefixes.on_computed(request, scheduled.after)

    def on_failed(self, step: Sequence[Scheduled]) -> None:
        """A step has not come to its end: its requests are computed again, from the start.

        Some states have taken in their tokens, and others haven't.
        """
        for copy in (copy for scheduled in self._step for copy in scheduled.after):
            self.blocks.leave(copy.group, [copy.target])
        self._step = []
        for request in (scheduled.request for scheduled in reversed(step)):
            if request.finish_reason is None:
                self._restart(request)

    def _reserve(self, request: Request, budget: int) -> int:
        """Gives a request blocks for its next tokens; returns how many, 0 if there are none."""
        count = min(request.num_uncached, self.prefill_chunk, budget)
        if request.keep_after:
            count = min(count, request.keep_after[0] - request.num_cached)
        is_alone = len(self.running) == 1
        while not self._fits(request, count):
            # a window and a long chunk may be more than a pool holds
            count = count // 2 if is_alone else 0
            if count == 0:
                break
        return count

    def _fits(self, request: Request, count: int) -> bool:
        cached = request.num_cached
        return self.blocks.reserve(request.request_id, cached, cached + count)

    def preempt(self, request: Request) -> None:
        """Puts a request that runs back to the head of the queue, to be computed again.

        What it has computed is kept as long as nobody needs its blocks more.
        """
        if self.prefixes is not None:
            self.prefixes.donate(request)
        self._restart(request)

    def _restart(self, request: Request) -> None:
        self.running.remove(request)
        self._admission.on_preempted(request)
        self._on_freed(self.blocks.release(request.request_id))
        request.num_cached = request.num_stored = request.num_resumed = 0
        request.keep_after = []
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)
