"""What one request has computed serves others that begin alike, and no token is another for it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blockstride.models import SamplingParams
from blockstride.models.engine import Engine, Request
from blockstride.models.engine.prefix_store import PrefixStore
from tests.models.generations import make_engine, tokens

VOCAB = 259
LENGTH = 12
"""Most tokens of an answer."""
UNSHRUNK = settings(max_examples=settings().max_examples // 16, phases=[Phase.generate])


def greedy(count=LENGTH, **options):
    return SamplingParams(max_tokens=count, ignore_eos=True, **options)


def answer(engine, prompt, **options):
    """The answer to a prompt alone, and how many of its tokens were not computed."""
    before = hits(engine)
    request = engine.add_request(prompt, greedy(**options))
    finish(engine)
    return request.output_ids, hits(engine) - before


def hits(engine):
    """Tokens that have not been computed, of all requests so far."""
    return engine.report().prefixes.hit_tokens


def store_of(engine) -> PrefixStore:
    """What is kept."""
    prefixes = engine.scheduler.prefixes
    assert prefixes is not None
    return prefixes.store


def finish(engine):
    while engine.has_work:
        engine.step()
        engine.blocks.check()


def forgetful(path):
    """Prompt -> its answer by an engine that keeps nothing."""
    engine = make_engine(path, prefix_caching=False)
    answers = {}

    def known(prompt):
        if tuple(prompt) not in answers:
            request = engine.add_request(prompt, greedy())
            finish(engine)
            answers[tuple(prompt)] = request.output_ids
        return answers[tuple(prompt)]

    return known


@pytest.fixture(scope="module")
def known(reference):
    return forgetful(reference.path)


@pytest.fixture(scope="module", params=["jamba", "gemma2"])
def model(request, make_reference):
    """One with states, and one with windows: its name, its folder, and what it answers."""
    path = make_reference(family=request.param).path
    return request.param, path, forgetful(path)


def test_a_second_sequence_shows_where_states_are_wanted_and_a_third_begins_there(reference, known):
    engine = make_engine(reference.path, poison=True)
    trunk = tokens(VOCAB, 53)
    prompts = [trunk + tokens(VOCAB, 20, seed) for seed in (1, 2, 3)]
    got = [answer(engine, prompt) for prompt in prompts]
    assert [ids for ids, _ in got] == [known(prompt) for prompt in prompts]
    assert [count for _, count in got] == [0, 0, 53]


def test_a_chat_that_grows_is_never_computed_twice(reference, known):
    engine = make_engine(reference.path, poison=True)
    chat = tokens(VOCAB, 40)
    for turn in range(4):
        ids, count = answer(engine, chat)
        assert ids == known(chat)
        # the last token of an answer has not been computed, as nothing followed it
        assert count == (len(chat) - 9 - 1 if turn else 0)
        chat = [*chat, *ids, *tokens(VOCAB, 9, turn)]


def test_a_prompt_that_comes_again_is_computed_but_for_its_last_token(reference, known):
    engine = make_engine(reference.path)
    prompt = tokens(VOCAB, 50)
    got = [answer(engine, prompt) for _ in range(3)]
    assert [ids for ids, _ in got] == [known(prompt)] * 3
    assert [count for _, count in got] == [0, 0, 49]


def test_requests_that_come_together_wait_for_what_they_begin_with(reference, known):
    engine = make_engine(reference.path, poison=True, prefill_chunk=16)
    trunk = tokens(VOCAB, 90)
    prompts = [trunk + tokens(VOCAB, 5, seed) for seed in range(6)]
    requests = [engine.add_request(prompt, greedy()) for prompt in prompts]
    finish(engine)
    assert [request.output_ids for request in requests] == [known(prompt) for prompt in prompts]
    assert hits(engine) == 5 * 90


def test_requests_of_other_salts_share_nothing(reference):
    engine = make_engine(reference.path)
    prompt = tokens(VOCAB, 50)
    assert [answer(engine, prompt, cache_salt=salt)[1] for salt in "aaabab"] == [0, 0, 49, 0, 49, 0]


def test_blocks_are_shared_and_a_block_in_part_is_copied(reference):
    engine = make_engine(reference.path, block_size=16)
    trunk = tokens(VOCAB, 40)
    for seed in (1, 2):
        answer(engine, trunk + tokens(VOCAB, 20, seed))
    requests = [engine.add_request(trunk + tokens(VOCAB, 9, seed), greedy()) for seed in (3, 4)]
    engine.step()
    held = [engine.blocks.held(request.request_id) for request in requests]
    [group] = store_of(engine).token_groups
    first, second = (blocks[group][1] for blocks in held)
    assert first[:2].tolist() == second[:2].tolist()
    assert set(first[2:]).isdisjoint(second[2:])


def test_keys_and_values_that_are_there_are_not_stored_again(reference, known):
    engine = make_engine(reference.path, block_size=16)
    trunk = tokens(VOCAB, 60)
    answer(engine, trunk + tokens(VOCAB, 20, 1))
    free = engine.blocks.num_free
    prompt = trunk + tokens(VOCAB, 20, 2)
    request = engine.add_request(prompt, greedy())
    engine.step()
    [group] = store_of(engine).token_groups
    assert (request.num_resumed, request.num_stored, request.num_cached) == (0, 60, 60)
    # of five blocks three are those of the first
    pool = engine.blocks.groups[group][0]
    assert len(engine.blocks.held(request.request_id)[group][1]) == 4
    assert free[pool] - engine.blocks.num_free[pool] == 4
    finish(engine)
    assert request.output_ids == known(prompt)


@dataclass
class Traffic:
    """Requests with common beginnings, an engine with hardly any room, and what disturbs them."""

    rng: random.Random
    engine: Engine
    known: Callable[[list[int]], list[int]]
    running: list[Request] = field(default_factory=list)
    ended: int = 0

    def __post_init__(self) -> None:
        lengths = [self.rng.randint(1, 60) for _ in range(3)]
        self.trunks = [tokens(VOCAB, length, i) for i, length in enumerate(lengths)]

    def come(self) -> None:
        trunk = self.rng.choice(self.trunks)
        prompt = trunk[: self.rng.randint(1, len(trunk))]
        if self.rng.random() < 0.6:
            prompt = prompt + tokens(VOCAB, self.rng.randint(1, 30), self.rng.randint(0, 5))
        if self.running and self.rng.random() < 0.3:
            other = self.rng.choice(self.running)
            prompt = [*other.prompt_ids, *other.output_ids][:90]
        params = greedy(self.rng.randint(1, LENGTH))
        self.running.append(self.engine.add_request(prompt, params))

    def leave(self) -> None:
        request = self.running.pop(self.rng.randrange(len(self.running)))
        self.engine.abort(request)
        self.ended += 1

    def fail(self) -> None:
        """A step that comes to nothing, before or after its tokens have gone into states."""
        forward, is_late = self.engine.steps.forward, self.rng.random() < 0.5

        def failing(batch):
            if is_late:
                forward(batch)
            raise MemoryError

        self.engine.steps.forward = failing
        with pytest.raises(MemoryError):
            self.engine.step()
        self.engine.steps.forward = forward

    def step(self) -> None:
        self.engine.step()
        for request in [each for each in self.running if each.finish_reason is not None]:
            self.running.remove(request)
            self.ended += 1
            assert request.finish_reason == "length", request.error
            assert request.output_ids == self.known(request.prompt_ids)[: len(request.output_ids)]

    def run(self, count: int) -> None:
        while self.ended < count or self.running:
            if self.ended + len(self.running) < count and self.rng.random() < 0.4:
                self.come()
            if self.running and self.rng.random() < 0.03:
                self.leave()
            if self.engine.scheduler.running and self.rng.random() < 0.05:
                self.fail()
            self.step()
            self.engine.blocks.check()


@given(seed=st.integers(0, 10**9))
@UNSHRUNK
def test_whatever_is_evicted_aborted_preempted_or_fails_tokens_stay(model, seed):
    family, path, known = model
    rng = random.Random(seed)
    policy, size = rng.choice(["split", "unified"]), rng.choice([4, 16])
    longest = 2 - -130 // size
    blocks = [rng.randint(longest, 2 * longest) for _ in range(2)]
    if family == "jamba":
        # of states
        blocks[0] = rng.randint(2, 7)
    engine = make_engine(
        path,
        policy=policy,
        layout=rng.choice(["BLHNC", "LBNHC", "BHLNC"]),
        block_size=size,
        num_blocks=max(20, sum(blocks)) if policy == "unified" else blocks,
        max_num_seqs=rng.choice([1, 3]),
        max_len=110,
        prefill_chunk=rng.choice([None, 5, 16]),
        max_num_batched_tokens=rng.choice([24, 2048]),
        poison=True,
    )
    Traffic(rng, engine, known).run(15)
    store = store_of(engine)
    store.evict([pool.num_blocks for pool in engine.blocks.pools])
    engine.blocks.check()
    assert [*store.tree.nodes()] == []
    everything = [pool.num_blocks - 1 for pool in engine.blocks.pools]
    assert not engine.blocks.lacking(everything)


def test_a_state_that_is_worth_less_than_what_it_would_displace_is_not_kept(reference):
    engine = make_engine(reference.path, num_blocks=(4, 60), max_num_seqs=1)
    valued = tokens(VOCAB, 200)
    answer(engine, valued, count=1)
    for seed in range(1, 4):
        answer(engine, tokens(VOCAB, 3, seed), count=1)
    assert answer(engine, [*valued, 5], count=1)[1] == 200


def test_scores_of_no_number_are_kept_for_nobody(reference):
    engine = make_engine(reference.path)
    forward, prompt = engine.steps.forward, tokens(VOCAB, 20)
    engine.steps.forward = lambda batch: forward(batch) * torch.nan
    request = engine.add_request(prompt, greedy())
    finish(engine)
    engine.steps.forward = forward
    assert request.finish_reason == "error"
    assert engine.blocks.num_free == tuple(pool.num_blocks - 1 for pool in engine.blocks.pools)
