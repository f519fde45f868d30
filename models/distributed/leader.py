"""Rank 0 of an engine: it schedules, samples, and tells the other ranks what to compute."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import Any

from blockstride.models.distributed.heartbeat import Pulse, Watch
from blockstride.models.distributed.jobs import Jobs
from blockstride.models.distributed.launcher import START_SECONDS
from blockstride.models.distributed.letters import Ended, Wake
from blockstride.models.distributed.life import Event
from blockstride.models.distributed.load import Load
from blockstride.models.distributed.messages import (
    Ask,
    Beat,
    Close,
    Failed,
    Outcome,
    Peer,
    Ready,
    Settled,
    Setup,
    Start,
    Stop,
)
from blockstride.models.distributed.pipes import Inbox, Letter, LockedPipe
from blockstride.models.distributed.rank_transfers import RankTransfers
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import Engine, EngineReport
from blockstride.models.engine.tiers import Tiers
from blockstride.models.engine.tiers.commands import TierDone
from blockstride.models.hybrid_model import HybridModel

LOAD_SECONDS = 0.1
"""Least time between two words on the load of a busy engine."""


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
        self, setup: Setup, model: HybridModel, ranks: Ranks, inbox: Inbox, front_end: LockedPipe
    ) -> None:
        self._setup, self._ranks = setup, ranks
        self._inbox, self._front_end = inbox, front_end
        self.engine = Engine(model, setup.config, ranks, setup.model_fingerprint)
        if self.engine.tiers is not None:
            self.engine.tiers.on_change = lambda: inbox.put(0, Wake())
        if setup.transfer is not None:
            ranks.transfers = RankTransfers(
                setup, setup.transfer, model, self.engine.pools, lambda: inbox.put(0, Wake())
            )
        self._jobs = Jobs(self.engine, ranks, front_end.send)
        self._pulse = Pulse(setup.timeout_seconds, self._beat)
        self._watch = Watch(setup.timeout_seconds, self._on_unresponsive)
        self._others_progress = False
        self._is_stuck = False
        self._is_closing = False
        self._load: Load | None = None
        self._load_told = 0.0

    def run(self) -> None:
        """Waits for all ranks, and serves until it is told to close."""
        own = self._ranks.transfers
        addresses = {0: own.address if own else ""}
        deadline = monotonic() + START_SECONDS
        while len(addresses) < len(self._ranks) and not self._is_closing:
            letter = self._inbox.take(max(0.0, deadline - monotonic()))
            if letter is None:
                raise TimeoutError(f"ranks: expected all to load in {START_SECONDS} s")
            match letter.message:
                case Ready((address,)):
                    addresses[letter.sender] = address
                case Failed(error, reason):
                    raise error(reason)
                case message:
                    self._on(letter.sender, message)
        if self._is_closing:
            return
        self._ranks.join(self._setup)
        self.engine.warm_up()
        ordered = tuple(addresses[rank] for rank in range(len(self._ranks)))
        self._front_end.send(Ready(ordered, self.engine.limits, self.engine.capacity))
        self._serve()

    def _serve(self) -> None:
        self._inbox.on_beat = self._on_beat
        self._watch.start(list(range(1, len(self._ranks))))
        self._pulse.start()
        while not self._is_closing:
            letter = self._next_letter()
            while letter is not None and not self._is_closing:
                self._is_stuck = False
                self._on(letter.sender, letter.message)
                letter = self._inbox.take(0)
            if self.engine.has_work:
                self._step()
                if monotonic() - self._load_told >= LOAD_SECONDS:
                    self._tell_load()
            self._pulse.finished_work()
        if self.engine.tiers is not None:
            self._flush(self.engine.tiers)
            self.engine.tiers.close()
        self._ranks.close()

    def _flush(self, tiers: Tiers) -> None:
        """Has all ranks write files of what the engine knows."""

        def wait(seconds: float) -> None:
            letter = self._inbox.take(seconds)
            if letter is not None and isinstance(letter.message, TierDone):
                tiers.on_done(letter.message)
            tiers.poll()

        tiers.flush(wait=wait)

    def _next_letter(self) -> Letter | None:
        """Waits for one when there is nothing to compute before it comes."""
        if self.engine.has_work and not self._is_stuck:
            return self._inbox.take(0)
        self._tell_load()
        with self._pulse.idle():
            return self._inbox.take()

    def _on(self, sender: Any, message: Any) -> None:
        match message:
            case Start():
                self._jobs.start(message)
            case Stop(request_id):
                self._jobs.on(request_id, Event.STOP)
            case Peer(engine_id, addresses):
                if not addresses:
                    self._jobs.on_source_gone(engine_id)
                self._ranks.tell(message)
            case Wake():
                for event in self._ranks.own_events():
                    self._jobs.on_rank(event)
            case Outcome() | Settled():
                self._jobs.on_rank(message)
            case TierDone():
                assert self.engine.tiers is not None, "all ranks have tiers or none"
                self.engine.tiers.on_done(message)
            case Ask():
                self._front_end.send(self._report())
            case Close():
                self._is_closing = True
            case Failed(error, reason):
                raise error(f"rank {sender}: {reason}")
            case Ended():
                raise RuntimeError(f"rank {sender}: its process has ended")

    def _step(self) -> None:
        steps = self.engine.stats.steps
        events = self.engine.step()
        # an empty step lacks blocks that others hold, and a letter comes when they are free
        self._is_stuck = self.engine.stats.steps == steps
        if not self._is_stuck:
            self._front_end.send(self._jobs.on_step(events))

    def _report(self) -> EngineReport:
        transfers = self._ranks.transfers
        return replace(
            self.engine.report(),
            engine_id=self._setup.engine_id,
            transfers=None if transfers is None else transfers.connector.counters(),
            failed_reads=self._jobs.failed_reads,
        )

    def _tell_load(self) -> None:
        """Says how much there is to do, unless the front end knows."""
        load, self._load_told = self._jobs.load(), monotonic()
        if load != self._load:
            self._load = load
            self._front_end.send(load)

    def _on_beat(self, rank: int, beat: Beat) -> None:
        """A follower is alive; called on the thread that listens to it."""
        self._watch.heard(rank)
        self._others_progress |= beat.makes_progress

    def _beat(self, beat: Beat) -> None:
        """Ranks wait for each other, so all make progress as long as one does."""
        makes_progress, self._others_progress = beat.makes_progress or self._others_progress, False
        self._front_end.send(Beat(makes_progress))

    def _on_unresponsive(self, rank: int) -> None:
        """Called on the counting thread: the one that works may wait for that rank for ever."""
        reason = f"no heartbeat of rank {rank} for {self._setup.timeout_seconds:g} s"
        self._front_end.send(Failed(RuntimeError, reason))
