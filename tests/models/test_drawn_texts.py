"""What a request draws depends on itself alone: not on company, preemption or neighbours."""

import math

import pytest
import torch

from blockstride.models import LLM, SamplingParams
from blockstride.models.engine import sampler
from blockstride.models.engine.admission import Admission
from tests.models.generations import make_engine, tokens


@pytest.fixture(scope="module")
def granite(make_reference):
    return make_reference(family="granite").path


def drawn(engine, prompts, params) -> list[list[int]]:
    """Tokens of every prompt, all run together."""
    requests = [engine.add_request(*each) for each in zip(prompts, params, strict=True)]
    while engine.has_work:
        engine.step()
    return [request.output_ids for request in requests]


def test_texts_are_the_same_alone_among_others_and_after_a_preemption(granite, monkeypatch):
    """The model's sums are rounded otherwise in each case."""
    prompts = [tokens(259, 3 + 5 * i, seed=i) for i in range(16)]
    cuts = [(0, 1.0), (50, 1.0), (0, 0.95), (50, 0.9)]
    params = [
        SamplingParams(16, 1.0 + i / 16, *cuts[i % 4], seed=i, ignore_eos=True) for i in range(16)
    ]
    engine = make_engine(granite)
    together = drawn(engine, prompts, params)
    alone = [drawn(engine, [p], [q])[0] for p, q in zip(prompts, params, strict=True)]
    assert together == alone
    # nobody looks ahead
    monkeypatch.setattr(Admission, "admits", lambda *_: True)
    tight = make_engine(granite, num_blocks=(17, 20), prefill_chunk=32)
    assert drawn(tight, prompts, params) == alone
    assert tight.scheduler.num_preemptions > 0


def test_scores_that_are_no_numbers_end_their_request_alone(reference, monkeypatch):
    llm = LLM(reference.path, device="cpu")
    forward = llm.engine.steps.forward
    steps = []

    def spoilt(batch):
        logits = forward(batch)
        steps.append(len(logits))
        if len(steps) == 4:
            logits[1] = math.nan
        return logits

    monkeypatch.setattr(llm.engine.steps, "forward", spoilt)
    prompts = ["one", "two", "three"]
    params = SamplingParams(max_tokens=8, temperature=0.9, seed=1, ignore_eos=True)
    completions = llm.generate(prompts, params)
    monkeypatch.undo()
    whole = llm.generate(prompts, params)
    assert [c.finish_reason for c in completions] == ["length", "error", "length"]
    assert [c.token_ids for c in completions[::2]] == [c.token_ids for c in whole[::2]]
    assert completions[1].token_ids == whole[1].token_ids[:3]
    assert completions[1].error == "expected finite scores, got NaN or infinity"
    llm.engine.blocks.check()
    assert not llm.engine.has_work


def test_a_step_of_greedy_rows_takes_no_random_numbers(monkeypatch):
    monkeypatch.setattr(sampler, "exponential", None)
    monkeypatch.setattr(sampler, "noise_key", None)
    logits = torch.randn(3, 10)
    assert (
        sampler.sample(logits, [SamplingParams()] * 3, [0] * 3, [0] * 3)
        == logits.argmax(1).tolist()
    )
