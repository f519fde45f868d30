"""Jobs of one engine: requests that it computes, reads from other engines, or holds for them.

Rank 0 keeps the books; every rank does its part of each hand-over. Blocks change hands only when
all ranks have said so. What happens when is in the table `ENGINE`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockstride.models.distributed.life import ENGINE, Act, Event, State
from blockstride.models.distributed.load import Load
from blockstride.models.distributed.messages import (
    GroupBlocks,
    Held,
    Hold,
    Outcome,
    Progress,
    Read,
    Settled,
    Start,
    Stop,
    Token,
)
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import Engine, Request, TokenEvent
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.room import Room

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A request, as one engine sees it.

    Attributes:
        request: What is computed.
        state: Where it is.
        source: The engine that it is read from; "" when it is computed from its tokens.
        said: How many ranks have said what.
    """

    request: Request
    state: State
    source: str = ""
    said: Counter[Event] = field(default_factory=Counter)


class Jobs:
    """All jobs of an engine, by the id of their request.

    Args:
        engine: The engine.
        ranks: All its ranks.
        say: Tells the front end something.
    """

    def __init__(self, engine: Engine, ranks: Ranks, say: Callable[[Any], object]) -> None:
        self._engine, self._ranks, self._say = engine, ranks, say
        chunk = engine.config.max_num_batched_tokens
        self._room = Room(engine.blocks, engine.limits.max_len, chunk)
        self._jobs: dict[int, Job] = {}
        # how many ranks may still write to the blocks of a read
        self._unsettled: dict[int, int] = {}
        self.num_reads = self.failed_reads = 0
        self._acts: dict[Act, Callable[[Request], object]] = {
            Act.REMOVE: engine.abort,
            Act.READ: self._read,
            Act.RUN: self._run,
            Act.SET_APART: self._set_apart,
            Act.DROP: engine.scheduler.detach,
            Act.COMPUTE: self._compute,
            Act.OFFER: self._offer,
            Act.ANNOUNCE: lambda request: say(Held(request.request_id)),
            Act.WITHDRAW: lambda request: ranks.tell(Stop(request.request_id)),
            Act.RELEASE: lambda request: engine.release(request.request_id),
        }

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, message: Start) -> None:
        """Begins a job; one that this engine can't do ends at once, with an error."""
        request_id = message.request_id
        try:
            request = self._engine.new_request(
                message.prompt_ids,
                message.params,
                message.output_ids,
                message.max_len,
                request_id,
            )
        except ValueError as error:
            self._say(Progress([Token(request_id, None, "error", str(error))], {}))
            return
        request.hands_over = message.hands_over
        state = State.TO_READ if message.source else State.COMPUTING
        self._jobs[request_id] = Job(request, state, message.source)
        self._engine.scheduler.add(request, self._on_admitted if message.source else None)

    def _on_admitted(self, request: Request) -> None:
        self.on(request.request_id, Event.ADMITTED)

    def on(self, request_id: int, event: Event) -> None:
        """Does what the table says about an event."""
        job = self._jobs.get(request_id)
        if job is None:
            # in the last row of the table, where nothing happens
            return
        job.state, acts = ENGINE[job.state][event]
        if job.state is State.OVER:
            del self._jobs[request_id]
        for act in acts:
            self._acts[act](job.request)

    def on_source_gone(self, engine_id: str) -> None:
        """An engine is gone: nothing will be read from it."""
        for request_id, job in list(self._jobs.items()):
            if job.source == engine_id:
                self.on(request_id, Event.SOURCE_GONE)

    def on_rank(self, message: Outcome | Settled) -> None:
        """Takes in what a rank says: one can lose a read, the rest takes all of them."""
        if isinstance(message, Settled):
            self._settle(message.request_id)
            return
        job = self._jobs.get(message.request_id)
        if job is None:
            return
        job.said[message.event] += 1
        if message.event is Event.LOST:
            logger.warning("%s: not read: %s", job.source, message.error)
        if message.event is Event.LOST or job.said[message.event] == len(self._ranks):
            self.on(message.request_id, message.event)

    def on_step(self, events: Sequence[TokenEvent]) -> Progress:
        """Takes in what a step has brought, and says it for the front end."""
        tokens = []
        for event in events:
            request = event.request
            request_id, reason = request.request_id, request.finish_reason
            tokens.append(_token(event))
            if reason is not None:
                self.on(request_id, Event.ENDED)
            elif request.hands_over:
                self.on(request_id, Event.LEAVES)
        running = self._engine.scheduler.running
        cached = {each.request_id: each.num_cached for each in running if each.num_uncached > 1}
        return Progress(tokens, cached)

    def load(self) -> Load:
        """How much there is to do, and what was done."""
        engine, scheduler = self._engine, self._engine.scheduler
        active = [*scheduler.running, *scheduler.arriving]
        waiting = [*scheduler.waiting, *scheduler.aside]
        known = scheduler.prefixes and scheduler.prefixes.stats
        return Load(
            num_running=len(active),
            num_waiting=len(waiting),
            queued_tokens=sum(each.num_uncached for each in (*active, *waiting)),
            num_free=engine.blocks.num_free,
            num_blocks=tuple(pool.layout.num_blocks - 1 for pool in engine.pools),
            room=self._room.num_tokens,
            num_preemptions=scheduler.num_preemptions,
            asked_tokens=known.asked_tokens if known else 0,
            hit_tokens=known.hit_tokens if known else 0,
            num_reads=self.num_reads,
            failed_reads=self.failed_reads,
        )

    def _offer(self, request: Request) -> None:
        self._engine.scheduler.detach(request)
        blocks = self._engine.blocks.held(request.request_id)
        self._ranks.tell(Hold(request.request_id, request.num_cached, blocks))

    def _read(self, request: Request) -> None:
        request_id = request.request_id
        self._unsettled[request_id] = len(self._ranks)
        owned, source = self._engine.blocks, self._jobs[request_id].source
        blocks, present = _lacking(request, owned)
        copies = owned.copies(request_id)
        num_tokens = request.num_tokens - 1
        self._ranks.tell(Read(request_id, num_tokens, blocks, source, present, copies))
        # whatever writes to their sources now comes after them
        owned.on_copied(request_id)

    def _run(self, request: Request) -> None:
        self.num_reads += 1
        self._engine.scheduler.attach(request)

    def _compute(self, request: Request) -> None:
        self.failed_reads += 1
        self._engine.scheduler.compute(request)

    def _set_apart(self, request: Request) -> None:
        self._engine.blocks.rename(request.request_id, _apart(request.request_id))
        self._ranks.tell(Stop(request.request_id))

    def _settle(self, request_id: int) -> None:
        """Nothing writes to the blocks of a read any more, on one more rank."""
        if request_id not in self._unsettled:
            return
        self._unsettled[request_id] -= 1
        if self._unsettled[request_id] == 0:
            del self._unsettled[request_id]
            # nothing, unless they were set apart
            self._engine.release(_apart(request_id))


def _lacking(request: Request, owned: BlockManager) -> tuple[GroupBlocks, list[int]]:
    """The blocks of a request that lack tokens, and how many the first of each group has."""
    lacking: GroupBlocks = []
    counts = []
    held = owned.held(request.request_id)
    known = request.present or [0] * len(held)
    for (first, ids), (_, placed), tokens in zip(held, owned.groups, known, strict=True):
        start = max(first, tokens // placed.block_size)
        lacking.append((start, ids[start - first :]))
        counts.append(max(0, tokens - start * placed.block_size) if start - first < len(ids) else 0)
    return lacking, counts


def _token(event: TokenEvent) -> Token:
    request, logprobs, of_prompt, resumed = event.request, None, (), 0
    if event.token_id is not None and request.logprobs:
        logprobs = request.logprobs[-1]
    if len(request.output_ids) == 1:
        of_prompt, resumed = request.prompt_logprobs, request.num_resumed
    reason, error = request.finish_reason, request.error
    return Token(request.request_id, event.token_id, reason, error, logprobs, of_prompt, resumed)


def _apart(request_id: int) -> int:
    """Who owns blocks that were taken from a request while something may still write to them."""
    return -1 - request_id
