"""Which requests run: whatever the mix, little is computed twice, and everybody's turn comes."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blockstride.layouts import (
    KVCacheLayout,
    full_attention,
    mamba1,
    plan_pools,
    sliding_window_attention,
)
from blockstride.models import SamplingParams
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.request import Request
from blockstride.models.engine.scheduler import Scheduler

LAYERS = {
    "a": full_attention(2, 16, torch.float32),
    "b": mamba1(32, 4, 4, conv_dtype=torch.float32),
    "c": sliding_window_attention(2, 16, torch.float32, window=10),
}
SEEDS = st.integers(0, 10**9)
# `make prove` takes many more
UNSHRUNK = settings(max_examples=settings().max_examples // 4, phases=[Phase.generate])
FITS = 96
"""Tokens of the longest request."""


def new_scheduler(policy="split", layers="ab", chunk=1 << 30, num_seqs=6, batched=64, size=4):
    pools = plan_pools(
        {name: LAYERS[name] for name in layers},
        layout=KVCacheLayout.BLHNC,
        policy=policy,
        num_blocks=1000,
        block_size=size,
    )
    # as few blocks as let the longest request run alone, a token at a time if need be
    one = [torch.tensor([n]).numpy() for n in (FITS, 1)]
    most = BlockManager(pools, 1, FITS).most_held(*one)[0]
    counts = [int(blocks) + 1 for blocks in most]
    counts = [count if count > 2 else 1 + num_seqs for count in counts]
    pools = plan_pools(
        {name: LAYERS[name] for name in layers},
        layout=KVCacheLayout.BLHNC,
        policy=policy,
        num_blocks=counts,
        block_size=size,
    )
    return Scheduler(BlockManager(pools, num_seqs, FITS), batched, chunk, lambda _: None)


@dataclass
class Planned(Request):
    """A request whose end is known, computed here or fetched from elsewhere."""

    ends_after: int = 0
    fetched: bool = False


def new_request(number, prompt, output, max_tokens=None, **options):
    """A request that ends after `output` tokens, of at most `max_tokens`."""
    params = SamplingParams(max_tokens=max_tokens or output)
    longest = prompt + params.max_tokens
    return Planned(number, [0] * prompt, params, longest, ends_after=output, **options)


@dataclass
class Run:
    """A scheduler that computes nothing, and what a model would have had to do."""

    scheduler: Scheduler
    computed: int = 0
    steps: int = 0
    finished: list[Request] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    held: deque = field(default_factory=deque)
    fetching: deque = field(default_factory=deque)

    def step(self):
        """One step; hand-overs end in the order in which they began, some steps later."""
        scheduler, step = self.scheduler, self.scheduler.schedule()
        self.steps += 1
        for scheduled in step:
            request = scheduled.request
            if request.request_id not in self.order:
                self.order.append(request.request_id)
            request.num_cached += scheduled.num_new
            self.computed += scheduled.num_new
            if request.num_uncached == 0:
                self._token(request)
        if self.steps % 8 == 0:
            scheduler.blocks.check()
        while self.held and self.held[0][0] < self.steps:
            scheduler.blocks.release(self.held.popleft()[1].request_id)
        while self.fetching and self.fetching[0][0] < self.steps:
            scheduler.attach(self.fetching.popleft()[1])
        return step

    def _token(self, request):
        request.output_ids.append(0)
        if len(request.output_ids) >= request.ends_after:
            request.finish_reason = "stop"
            self.finished.append(request)
            self.scheduler.remove(request)
        elif request.hands_over:
            self.finished.append(request)
            self.scheduler.detach(request)
            self.held.append((self.steps + 5, request))

    def fetch(self, request):
        self.fetching.append((self.steps + 3, request))

    def to_the_end(self, requests):
        """Runs all, none of which may ever wait in vain."""
        for request in requests:
            self.scheduler.add(request, self.fetch if request.fetched else None)
        idle = 0
        while len(self.finished) < len(requests):
            idle = 0 if self.step() else idle + 1
            # held blocks come back, and fetched ones arrive, within a few steps
            assert idle < 10, "nothing runs any more"
        while self.held:
            self.step()
        free = tuple(pool.num_blocks - 1 for pool in self.scheduler.blocks.pools)
        assert self.scheduler.blocks.num_free == free


def needed(requests) -> int:
    """Tokens that have to be computed, each once; the last one of an answer isn't."""
    prompts = sum(len(request.prompt_ids) for request in requests if not request.fetched)
    return prompts + sum(r.ends_after - 1 for r in requests if not r.hands_over)


def a_mix(seed, *, early):
    """Requests that fit, each alone; some end before they must."""
    draw = random.Random(seed)
    kinds = draw.choice([["here"], ["here", "held"], ["here", "fetched"]])
    requests = []
    for number in range(draw.randint(1, 20)):
        prompt = draw.choice([1, draw.randint(1, 20), draw.randint(1, FITS - 2)])
        allowed = draw.randint(2, FITS - prompt)
        answer = draw.randint(2, allowed) if early else allowed
        kind = draw.choice(kinds)
        request = new_request(
            number, prompt, answer, allowed, hands_over=kind == "held", fetched=kind == "fetched"
        )
        if request.fetched:
            # its first token was made elsewhere
            request.output_ids.append(0)
        requests.append(request)
    return requests


def a_shape(seed):
    draw = random.Random(seed)
    return {
        "policy": draw.choice(["split", "unified"]),
        "layers": draw.choice(["ab", "ac", "abc"]),
        "chunk": draw.choice([3, 16, 1 << 30]),
        "num_seqs": draw.randint(2, 9),
        "batched": draw.choice([8, 64]),
    }


@UNSHRUNK
@given(seed=SEEDS)
def test_nothing_that_fits_is_computed_twice(seed):
    run, requests = Run(new_scheduler(**a_shape(seed))), a_mix(seed, early=False)
    run.to_the_end(requests)
    assert run.computed == needed(requests)
    # nobody who came later began before, those apart whose caches took their time to come
    order = [number for number in run.order if not requests[number].fetched]
    assert order == sorted(order)


@UNSHRUNK
@given(seed=SEEDS)
def test_bets_on_early_ends_cost_less_than_a_fifth(seed):
    run, requests = Run(new_scheduler(**a_shape(seed))), a_mix(seed, early=True)
    run.to_the_end(requests)
    assert run.computed <= 1.2 * needed(requests)


def test_an_answer_that_runs_is_not_slowed_by_a_prompt_that_waits():
    run = Run(new_scheduler(chunk=16))
    answer, prompt = new_request(0, 30, 60), new_request(1, 50, 20)
    for request in (answer, prompt):
        run.scheduler.add(request)
    while answer.finish_reason is None:
        run.step()
    # two chunks of its prompt, the second of which gives a token, and one step a token
    assert run.steps == 2 + 59
    assert run.computed == 30 + 59


@pytest.mark.parametrize("hands_over", [False, True])
def test_one_that_leaves_after_its_prompt_needs_room_for_no_more(hands_over):
    run = Run(new_scheduler())
    for i in range(3):
        run.scheduler.add(new_request(i, 20, 60, hands_over=hands_over))
    run.step()
    assert len(run.finished) == (3 if hands_over else 0)
    assert len(run.scheduler.waiting) == (0 if hands_over else 2)


def crowd(answers):
    """Requests that may all fill the cache, and end after so many tokens."""
    return [new_request(i, 6, answer, FITS - 6) for i, answer in enumerate(answers)]


def test_answers_that_end_early_let_more_of_them_run_at_once():
    run, requests = Run(new_scheduler(size=1)), crowd([6] * 250)
    run.to_the_end(requests)
    # one at a time would be sure, and take 6 steps each
    assert run.steps < 0.7 * 6 * len(requests)
    assert run.computed == needed(requests)


def test_bets_that_are_lost_cost_less_than_a_tenth():
    """Answers are short until they are bet on, and long then."""
    run, requests = Run(new_scheduler(size=1)), crowd([6] * 250 + [FITS - 6] * 10 + [6, 90] * 20)
    run.to_the_end(requests)
    assert run.scheduler.num_preemptions > 0
    assert max(request.num_preemptions for request in requests) == 1
    assert needed(requests) < run.computed < 1.1 * needed(requests)
