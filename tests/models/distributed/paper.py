"""An engine on paper: its real jobs and schedule, no model, and ranks that a test speaks for."""

from collections import deque

import torch

from blockstride.layouts import KVCacheLayout, full_attention, mamba1, plan_pools
from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.distributed.jobs import Jobs
from blockstride.models.distributed.messages import Start
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import TokenEvent
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.limits import PromptLimits
from blockstride.models.engine.prefix_cache import PrefixCache
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
        prefixes = PrefixCache(self.blocks)
        self.scheduler = Scheduler(self.blocks, 32, 8, lambda _: None, prefixes)
        self.limits = PromptLimits.of(None, LONGEST, LONGEST, 100)
        self.max_len = LONGEST
        self.all_blocks = self.blocks.num_free

    def step(self):
        events = []
        step = self.scheduler.schedule()
        self.scheduler.on_computed()
        for scheduled in step:
            request = scheduled.request
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
