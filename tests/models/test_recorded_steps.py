"""Which steps are recorded, and that no setting round them changes a token."""

import pytest
import torch

from blockstride.checks import full_checks
from blockstride.models import SamplingParams
from blockstride.models.engine.recorded_steps import MAX_RECORDINGS
from tests.models.family_laws import ComparedSteps
from tests.models.generations import make_engine, tokens

LENGTHS = (40, 3, 17, 5, 9)


@pytest.fixture(scope="module")
def reference(make_reference):
    return make_reference(num_experts=4)


def run(engine, lengths=LENGTHS, count=12):
    """Greedy answers to prompts that come one after the other."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    requests = []
    for length in lengths:
        requests.append(engine.add_request(tokens(259, length, seed=length), params))
        engine.step()
    while engine.has_work:
        engine.step()
    engine.blocks.check()
    return [request.output_ids for request in requests]


@pytest.fixture(scope="module")
def plain(reference):
    engine = make_engine(reference.path, record_steps=False, cache_bytes=4 << 20)
    answers = run(engine)
    assert engine.steps.num_replayed == 0
    return answers


def test_steps_that_are_filled_up_with_padding_give_the_bits_of_plain_ones(reference, plain):
    engine = make_engine(reference.path, cache_bytes=4 << 20, poison=True)
    engine.steps = ComparedSteps(engine, fills_up=True)
    assert run(engine) == plain
    assert engine.steps.num_replayed > 5


def test_steps_are_replayed_by_default_and_prompts_never(reference, plain):
    engine = make_engine(reference.path, cache_bytes=4 << 20)
    assert run(engine) == plain
    decode_steps = engine.stats.steps - len(LENGTHS)
    assert 5 < engine.steps.num_replayed < decode_steps


def test_recording_leaves_the_caches_as_they_are(reference):
    engine = make_engine(reference.path, cache_bytes=4 << 20, poison=True)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    engine.add_request([5, 6, 7], params)
    engine.step()
    before = [pool.storage.clone() for pool in engine.pools]
    batches = []
    forward = engine.model.forward
    engine.model.forward = lambda batch: batches.append(batch) or forward(batch)
    engine.step()
    engine.model.forward = forward
    for pool, saved in zip(engine.pools, before, strict=True):
        pool.storage.copy_(saved)
    with torch.inference_mode():
        assert engine.steps._step(batches[0]) is not None
    for pool, saved in zip(engine.pools, before, strict=True):
        assert torch.equal(pool.storage, saved)


def test_full_checks_look_at_values_and_so_nothing_is_replayed(reference, plain):
    engine = make_engine(reference.path, cache_bytes=4 << 20)
    with full_checks():
        assert run(engine) == plain
    assert engine.steps.num_replayed == 0


def test_what_a_request_takes_over_from_another_is_there_in_replayed_steps(reference):
    shared = tokens(259, 45, seed=1)
    engine = make_engine(reference.path, cache_bytes=4 << 20, poison=True)
    engine.steps = ComparedSteps(engine)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    answers = []
    for turn in range(3):
        request = engine.add_request([*shared, 9, 10 + turn], params)
        while engine.has_work:
            engine.step()
        answers.append(request.output_ids)
        assert reference.follows(request.prompt_ids, request.output_ids)
    found = engine.report().prefixes
    assert found is not None
    assert found.hit_tokens > 0
    assert engine.steps.num_replayed > 0


def test_recordings_of_many_sizes_are_not_kept_for_ever(reference, monkeypatch):
    monkeypatch.setattr("blockstride.models.engine.recorded_steps.MAX_RECORDINGS", 2)
    engine = make_engine(reference.path, cache_bytes=8 << 20, max_num_seqs=6)
    for _ in range(2):
        run(engine, lengths=(3, 4, 5, 6, 7), count=9)
    assert len(engine.steps._steps) == 2 < MAX_RECORDINGS
