"""Rank 0 of an engine: it schedules, samples, and tells the other ranks what to compute."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from blockstride.models.distributed.hand_over import HandOvers
from blockstride.models.distributed.inbox import Ended, Inbox
from blockstride.models.distributed.messages import (
    Abort,
    Ask,
    Close,
    Failed,
    Held,
    NewToken,
    Peers,
    Progress,
    Report,
    Setup,
    Submit,
)
from blockstride.models.distributed.rank_messages import (
    Arrived,
    Changed,
    LeaseOver,
    Offered,
    Settled,
)
from blockstride.models.distributed.rank_transfers import RankTransfers
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import Engine, Request
from blockstride.models.hybrid_model import HybridModel

MAX_EMPTY_STEPS = 2


class Leader:
    """Runs an engine for a front end, until that closes it.

    Args:
        setup: What it is.
        model: Rank 0's part.
        ranks: All ranks.
        inbox: What the front end and other ranks say.
        front_end: Where to answer.
    """

    def __init__(
        self, setup: Setup, model: HybridModel, ranks: Ranks, inbox: Inbox, front_end: Connection
    ) -> None:
        self._setup, self._ranks = setup, ranks
        self._inbox, self._front_end = inbox, front_end
        self.engine = Engine(model, setup.config, ranks)
        if setup.transfer is not None:
            ranks.transfers = RankTransfers(
                setup, setup.transfer, model, self.engine.pools, lambda: inbox.put(0, Changed())
            )
        self._hand_overs = HandOvers(self.engine, ranks, self._on_held)
        self._requests: dict[int, Request] = {}
        self._numbers: dict[int, int] = {}
        self._handing_over: set[int] = set()
        self._empty_steps = 0
        self._is_closing = False

    def run(self) -> None:
        """Serves for as long as it is wanted."""
        while not self._is_closing:
            letter = self._inbox.take(self._patience())
            if letter is None and not self._can_step:
                self._front_end.send(Progress([], {}))
            while letter is not None and not self._is_closing:
                self._empty_steps = 0
                self._on(letter.sender, letter.message)
                letter = self._inbox.take(0)
            if self.engine.has_work:
                self._step()
        self._ranks.close()

    def _patience(self) -> float | None:
        """How long to wait for a letter; one with requests says now and then that it is alive."""
        if self._can_step:
            return 0
        return self._setup.answer_seconds / 4 if self._requests else None

    @property
    def _can_step(self) -> bool:
        # a request that has ended leaves room for one that waits; if a second step is empty, blocks
        # are elsewhere, and a letter comes when they are back
        return self.engine.has_work and self._empty_steps < MAX_EMPTY_STEPS

    def _on(self, sender: Any, message: Any) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.request_id)
            case Peers():
                self._ranks.tell(message)
            case Changed():
                for event in self._ranks.own_events():
                    self._hand_overs.on(event)
            case Offered() | LeaseOver() | Arrived() | Settled():
                self._hand_overs.on(message)
            case Ask():
                self._front_end.send(self._report())
            case Close():
                self._is_closing = True
            case Failed():
                raise message.error(f"rank {sender}: {message.reason}")
            case Ended():
                raise RuntimeError(f"rank {sender}: its process has ended")

    def _submit(self, message: Submit) -> None:
        number = message.request_id
        request = self.engine.new_request(
            message.prompt_ids, message.params, message.output_ids, message.max_len
        )
        self._requests[number], self._numbers[request.request_id] = request, number
        if message.hands_over:
            self._handing_over.add(number)
            request.hands_over = True
        if message.source:
            self._hand_overs.load(str(number), request, message.source)
        else:
            self.engine.scheduler.add(request)

    def _abort(self, number: int) -> None:
        """A request may just have ended: the front end didn't know it yet."""
        self._handing_over.discard(number)
        request = self._requests.pop(number, None)
        is_here = self._hand_overs.drop(str(number))
        if request is not None:
            del self._numbers[request.request_id]
            if not is_here:
                self.engine.abort(request)

    def _step(self) -> None:
        steps = self.engine.stats.steps
        events = self.engine.step()
        if self.engine.stats.steps == steps:
            self._empty_steps += 1
            return
        self._empty_steps = 0
        tokens = []
        for event in events:
            request = event.request
            number = self._numbers[request.request_id]
            tokens.append(NewToken(number, event.token_id, request.finish_reason))
            if request.finish_reason is not None:
                self._forget(number)
            elif number in self._handing_over:
                self._forget(number)
                self._hand_overs.hold(str(number), request)
        running = self.engine.scheduler.running
        cached = {self._numbers[r.request_id]: r.num_cached for r in running if r.num_uncached > 1}
        self._front_end.send(Progress(tokens, cached))

    def _forget(self, number: int) -> None:
        del self._numbers[self._requests.pop(number).request_id]
        self._handing_over.discard(number)

    def _on_held(self, name: str) -> None:
        self._front_end.send(Held(int(name)))

    def _report(self) -> Report:
        transfers = self._ranks.transfers
        return Report(
            self._setup.engine_id,
            self.engine.report(),
            None if transfers is None else transfers.connector.counters(),
            self._hand_overs.failed_loads,
        )
