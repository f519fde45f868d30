"""A deployment on paper: real books and schedules, no model, no processes, and letters that wait.

Everything that can happen next is a move; a test chooses. Pipes keep the order of what they carry,
and nothing else does.
"""

import random
from collections import deque

import pytest
import torch

from blockstride.layouts import KVCacheLayout, full_attention, mamba1, plan_pools
from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.jobs import Jobs
from blockstride.models.distributed.life import Event
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
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.distributed.requests import Requests
from blockstride.models.engine import TokenEvent
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.limits import PromptLimits
from blockstride.models.engine.scheduler import Scheduler

LAYERS = {
    "a": full_attention(2, 16, torch.float32),
    "b": mamba1(32, 4, 4, conv_dtype=torch.float32),
}
LONGEST = 40
NUM_RANKS = 2
PROMPT = [5] * 10
ID = 7


class PaperEngine(Engine):
    """Its n-th token is n."""

    def __init__(self, num_blocks=(13, 5)):
        self.config = EngineConfig()
        pools = plan_pools(
            LAYERS,
            layout=KVCacheLayout.BLHNC,
            policy="split",
            num_blocks=list(num_blocks),
            block_size=4,
        )
        self.blocks = BlockManager(pools, 4, LONGEST)
        self.scheduler = Scheduler(self.blocks, 32, 8, lambda _: None)
        self.limits = PromptLimits.of(None, LONGEST, LONGEST, 100)
        self.max_len = LONGEST
        self.all_blocks = self.blocks.num_free

    def step(self):
        events = []
        for scheduled in self.scheduler.schedule():
            request = scheduled.request
            request.num_cached += scheduled.num_new
            if request.num_uncached == 0:
                token = len(request.output_ids)
                request.output_ids.append(token)
                if request.num_tokens >= request.max_len:
                    self.abort(request, "length")
                events.append(TokenEvent(request, token))
        return events

    def release(self, request_id):
        self.blocks.release(request_id)

    @property
    def is_whole(self):
        self.blocks.check()
        return self.blocks.num_free == self.all_blocks and not self.scheduler.arriving


class PaperRanks(Ranks):
    """Ranks that have been told things which they have not done yet."""

    def __init__(self):
        super().__init__(())
        self.told = [deque() for _ in range(NUM_RANKS)]

    def __len__(self):
        return NUM_RANKS

    def tell(self, command):
        for told in self.told:
            told.append(command)


class Books:
    """An engine, its jobs, and what came of them."""

    def __init__(self) -> None:
        self.engine, self.ranks, self.said = PaperEngine(), PaperRanks(), []
        self.jobs = Jobs(self.engine, self.ranks, self.said.append)

    @property
    def told(self):
        """What the first rank has been told."""
        return list(self.ranks.told[0])

    def start(self, request_id=ID, **options):
        """A job of two tokens after the prompt, the first of which is known if it is read."""
        known = [0] if options.get("source") else []
        params = SamplingParams(max_tokens=2)
        self.jobs.start(Start(request_id, PROMPT, known, params, len(PROMPT) + 2, **options))
        self.engine.scheduler.admit()

    def held(self):
        """A job that has just got its first token, for another engine."""
        self.start(hands_over=True)
        self.step(2)

    def step(self, count):
        for _ in range(count):
            self.said.append(self.jobs.on_step(self.engine.step()))

    def hear(self, *events):
        for event in events:
            self.jobs.on_rank(event)


class PaperProcess(EngineProcesses):
    """An engine, what it has been told, and what it says."""

    def __init__(self, engine_id):
        super().__init__(Setup(engine_id, EngineConfig(), "cpu", "", "", "", None, 1.0), [])
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
