"""A deployment on paper: no model, no processes, and messages that wait until a test takes one.

Everything that can happen next is a move; a test chooses. Pipes keep the order of what they carry,
and nothing else does.
"""

import random
from collections import deque

import pytest

from blockstride.models import EngineConfig, SamplingParams
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.jobs import Jobs
from blockstride.models.distributed.life import Event
from blockstride.models.distributed.local_ranks import LocalLauncher
from blockstride.models.distributed.messages import (
    Held,
    Hold,
    Outcome,
    Peer,
    Progress,
    Read,
    Settled,
    Setup,
    Start,
    Stop,
)
from blockstride.models.distributed.requests import Requests
from tests.models.distributed.paper import NUM_RANKS, PaperEngine, PaperRanks


class PaperProcess(EngineProcesses):
    """An engine, what it has been told, and what it says."""

    def __init__(self, engine_id):
        setup = Setup(engine_id, EngineConfig(), "cpu", "", "", "", None, 1.0)
        super().__init__(setup, [], LocalLauncher())
        self.known.capacity = 100
        self.engine, self.ranks = PaperEngine(), PaperRanks()
        self.told, self.says, self.started = deque(), deque(), set()
        self.books = Jobs(self.engine, self.ranks, self.says.append)
        # of each rank
        self.events = [deque() for _ in range(NUM_RANKS)]
        self.leases = [set() for _ in range(NUM_RANKS)]
        self.reads = [{} for _ in range(NUM_RANKS)]
        self.unsettled = [set() for _ in range(NUM_RANKS)]

    def tell(self, message):
        if self.is_alive:
            self.told.append(message)

    def kill(self):
        self.is_alive = False
        self.told.clear()

    def moves(self, others):
        """What it and its ranks may do next."""
        if not self.is_alive:
            return
        if self.told:
            yield self._hear
        if self.engine.has_work:
            yield self._step
        for rank in range(NUM_RANKS):
            if self.events[rank]:
                yield lambda rank=rank: self.books.on_rank(self.events[rank].popleft())
            if self.ranks.told[rank]:
                yield lambda rank=rank: self._do(rank, self.ranks.told[rank].popleft())
            for request_id in self.reads[rank]:
                yield lambda rank=rank, each=request_id: self._read(rank, each, others)
            for request_id in self.unsettled[rank]:
                yield lambda rank=rank, each=request_id: self._settle(rank, each)

    def _hear(self):
        match self.told.popleft():
            case Start() as message:
                assert message.request_id not in self.started, "an engine hears of an id once"
                self.started.add(message.request_id)
                self.books.start(message)
            case Stop(request_id):
                self.books.on(request_id, Event.STOP)
            case Peer(engine_id, ()):
                self.books.on_source_gone(engine_id)

    def _step(self):
        events = self.engine.step()
        if events or self.engine.scheduler.running:
            self.says.append(self.books.on_step(events))

    def _do(self, rank, command):
        match command:
            case Hold(request_id):
                self.leases[rank].add(request_id)
                self.events[rank].append(Outcome(request_id, Event.OFFERED))
            case Read(request_id):
                self.reads[rank][request_id] = command
            case Stop(request_id):
                if self.reads[rank].pop(request_id, None):
                    self._ended(rank, request_id, Event.LOST)
                self.end_lease(rank, request_id)

    def _read(self, rank, request_id, others):
        read = self.reads[rank].pop(request_id)
        source = next(other for other in others if other.engine_id == read.source)
        is_held = source.is_alive and request_id in source.leases[rank]
        if is_held:
            source.end_lease(rank, request_id)
        self._ended(rank, request_id, Event.ARRIVED if is_held else Event.LOST)

    def _ended(self, rank, request_id, event):
        self.events[rank].append(Outcome(request_id, event))
        self.unsettled[rank].add(request_id)

    def _settle(self, rank, request_id):
        self.unsettled[rank].remove(request_id)
        self.events[rank].append(Settled(request_id))

    def end_lease(self, rank, request_id):
        """It was read, withdrawn, or ran out."""
        if request_id in self.leases[rank]:
            self.leases[rank].remove(request_id)
            self.events[rank].append(Outcome(request_id, Event.RETURNED))


class PaperDeployment:
    """A front end and its engines."""

    def __init__(self, num_prefill=1, num_decode=1):
        self.prefill = [PaperProcess(f"prefill-{i}") for i in range(num_prefill)]
        self.decode = [PaperProcess(f"decode-{i}") for i in range(num_decode)]
        self.engines = [*self.prefill, *self.decode]
        self.requests = Requests(self.prefill, self.decode)
        self.everybody = []

    def submit(self, prompt, answer):
        params = SamplingParams(max_tokens=answer)
        self.everybody.append(self.requests.add([1] * prompt, params, prompt + answer))
        return self.everybody[-1]

    def kill(self, engine):
        engine.kill()
        for other in self.engines:
            other.tell(Peer(engine.engine_id, ()))
        try:
            self.requests.on_gone(engine, "killed")
        except EngineDiedError:
            assert not any(each.is_alive for each in self.engines)

    def hear(self, engine):
        """The front end takes in what an engine says; what a dead one has said is lost."""
        message = engine.says.popleft()
        if not engine.is_alive:
            return
        match message:
            case Progress():
                self.requests.on_progress(engine, message)
            case Held(request_id):
                self.requests.on_held(engine, request_id)

    def moves(self):
        """All that may happen next of itself."""
        found = [move for engine in self.engines for move in engine.moves(self.engines)]
        return found + [lambda e=engine: self.hear(e) for engine in self.engines if engine.says]

    def accidents(self, draw: random.Random):
        """Something that nobody has planned."""
        engine = draw.choice(self.engines)
        match draw.randrange(8):
            case 0:
                self.kill(engine)
            case 1 | 2 if self.everybody:
                self.requests.abort(draw.choice(self.everybody), "abort")
            case 3:
                for rank in range(NUM_RANKS):
                    for request_id in list(engine.leases[rank]):
                        engine.end_lease(rank, request_id)
            case 4:
                # nobody has asked for it
                number = draw.randrange(60)
                for message in (*(Outcome(number, event) for event in Event), Settled(number)):
                    if engine.is_alive and number not in engine.books._jobs:
                        engine.books.on_rank(message)
            case _ if any(each.is_alive for each in self.engines):
                self.submit(draw.randint(1, 25), draw.randint(1, 12))
            case _:
                with pytest.raises(EngineDiedError, match="no engine is left"):
                    self.submit(1, 1)

    def settle(self, draw: random.Random):
        """Goes on until nothing more happens."""
        for _ in range(20_000):
            moves = self.moves()
            if not moves:
                return
            draw.choice(moves)()
        raise AssertionError("it never ends")

    def check(self):
        """All have ended, with their own tokens, and all blocks are back."""
        assert len(self.requests) == 0
        for request in self.everybody:
            assert request.output_ids == list(range(len(request.output_ids)))
            if request.finish_reason == "length":
                assert request.num_tokens == request.max_len
            else:
                assert request.finish_reason in {"abort", "error"}
        for engine in self.engines:
            if engine.is_alive:
                assert len(engine.books) == 0
                assert engine.engine.is_whole
                assert not any(engine.leases)
                assert not engine.requests
