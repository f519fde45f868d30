"""Jobs of one engine: what it computes, what it reads from others, and what it holds for them.

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
from blockstride.models.distributed.messages import Held, NewToken, Progress, Submit
from blockstride.models.distributed.rank_messages import (
    Arrived,
    GiveUp,
    LeaseOver,
    Load,
    Offer,
    Offered,
    Settled,
    Withdraw,
)
from blockstride.models.distributed.rank_transfers import Event as RankEvent
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import Engine, Request, TokenEvent

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """What the front end has asked for.

    Attributes:
        number: The front end's.
        request: What is computed.
        state: Where it is.
        source: The engine that it is read from; "" when it is computed from its tokens.
        source_job: The job under which that holds it.
        said: How many ranks have said what.
    """

    number: int
    request: Request
    state: State
    source: str = ""
    source_job: int = -1
    said: Counter[type[RankEvent]] = field(default_factory=Counter)


@dataclass(eq=False)
class _Blocks:
    """Blocks that ranks read into.

    Attributes:
        owner: Whose they are: a request's, or nobody's once they are set apart.
        unsettled: Ranks where something may still write to them.
    """

    owner: int
    unsettled: int


class Jobs:
    """All jobs of an engine.

    Args:
        engine: The engine.
        ranks: All its ranks.
        say: Tells the front end something.
    """

    def __init__(self, engine: Engine, ranks: Ranks, say: Callable[[Any], object]) -> None:
        self._engine, self._ranks, self._say = engine, ranks, say
        self._jobs: dict[int, Job] = {}
        self._by_request: dict[int, Job] = {}
        self._read_into: dict[str, _Blocks] = {}
        self._last_owner = 0
        self.failed_loads = 0
        self._acts: dict[Act, Callable[[Job], object]] = {
            Act.REMOVE: lambda job: engine.abort(job.request),
            Act.READ: self._read,
            Act.RUN: lambda job: engine.scheduler.attach(job.request),
            Act.SET_APART: self._set_apart,
            Act.DROP: lambda job: engine.scheduler.detach(job.request),
            Act.COMPUTE: self._compute,
            Act.OFFER: self._offer,
            Act.ANNOUNCE: lambda job: say(Held(job.number)),
            Act.WITHDRAW: lambda job: ranks.tell(Withdraw(_name(job.number))),
            Act.RELEASE: lambda job: engine.release(job.request.request_id),
        }

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, message: Submit) -> None:
        """Begins a job; one that this engine can't do ends at once, with an error."""
        number = message.job
        try:
            request = self._engine.new_request(
                message.prompt_ids, message.params, message.output_ids, message.max_len
            )
        except ValueError as error:
            self._say(Progress([NewToken(number, None, "error", str(error))], {}))
            return
        request.hands_over = message.hands_over
        state = State.TO_READ if message.source else State.COMPUTING
        job = Job(number, request, state, message.source, message.source_job)
        self._jobs[number] = self._by_request[request.request_id] = job
        fetch = None
        if message.source:
            fetch = lambda _: self.on(number, Event.ADMITTED)  # noqa: E731
        self._engine.scheduler.add(request, fetch)

    def on(self, number: int, event: Event) -> None:
        """Does what the table says about an event."""
        job = self._jobs.get(number)
        if job is None:
            # in the last row of the table, where nothing happens
            return
        job.state, acts = ENGINE[job.state][event]
        if job.state is State.OVER:
            del self._jobs[number], self._by_request[job.request.request_id]
        for act in acts:
            self._acts[act](job)

    def on_source_gone(self, engine_id: str) -> None:
        """An engine is gone: nothing will be read from it."""
        for job in list(self._jobs.values()):
            if job.source == engine_id:
                self.on(job.number, Event.SOURCE_GONE)

    def on_rank(self, event: RankEvent) -> None:
        """Takes in what a rank says."""
        if isinstance(event, Settled):
            self._settle(event.name)
            return
        number = int(event.name)
        job = self._jobs.get(number)
        if job is None:
            return
        job.said[type(event)] += 1
        said_by_all = job.said[type(event)] == len(self._ranks)
        match event:
            case Arrived(error=error) if error:
                logger.warning("%s: not read: %s", job.source, error)
                self.on(number, Event.LOST)
            case Arrived() if said_by_all:
                self.on(number, Event.ARRIVED)
            case Offered() if said_by_all:
                self.on(number, Event.OFFERED)
            case LeaseOver() if said_by_all:
                self.on(number, Event.RETURNED)

    def on_step(self, events: Sequence[TokenEvent]) -> Progress:
        """Takes in what a step has brought, and says it for the front end."""
        tokens = []
        for event in events:
            request = event.request
            job = self._by_request[request.request_id]
            reason = request.finish_reason
            tokens.append(NewToken(job.number, event.token_id, reason, request.error))
            if reason is not None:
                self.on(job.number, Event.ENDED)
            elif request.hands_over:
                self.on(job.number, Event.LEAVES)
        running = self._engine.scheduler.running
        cached = {
            self._by_request[request.request_id].number: request.num_cached
            for request in running
            if request.num_uncached > 1
        }
        return Progress(tokens, cached)

    def _offer(self, job: Job) -> None:
        self._engine.scheduler.detach(job.request)
        blocks = self._engine.blocks.held(job.request.request_id)
        self._ranks.tell(Offer(_name(job.number), job.request.num_cached, blocks))

    def _read(self, job: Job) -> None:
        name, request = _name(job.number), job.request
        self._read_into[name] = _Blocks(request.request_id, len(self._ranks))
        blocks = self._engine.blocks.held(request.request_id)
        held_as = _name(job.source_job)
        self._ranks.tell(Load(name, request.num_tokens - 1, blocks, job.source, held_as))

    def _compute(self, job: Job) -> None:
        self.failed_loads += 1
        self._engine.scheduler.compute(job.request)

    def _set_apart(self, job: Job) -> None:
        name = _name(job.number)
        self._last_owner -= 1
        self._engine.blocks.rename(job.request.request_id, self._last_owner)
        self._read_into[name].owner = self._last_owner
        self._ranks.tell(GiveUp(name))

    def _settle(self, name: str) -> None:
        """Nothing writes to the blocks of a read any more, on one more rank."""
        blocks = self._read_into.get(name)
        if blocks is None:
            return
        blocks.unsettled -= 1
        if blocks.unsettled == 0:
            del self._read_into[name]
            if blocks.owner < 0:
                self._engine.release(blocks.owner)


def _name(number: int) -> str:
    """Of a job, among ranks."""
    return str(number)
