"""Log-probabilities are those of transformers' logits, whatever else is asked for."""

from typing import Any

import pytest
import torch

from blockstride.models import LLM, EngineConfig, SamplingParams
from tests.models.generations import make_engine

PROMPT = [5, 6, 7, 200, 40] * 9


@pytest.fixture(scope="module")
def llm(reference):
    return LLM(reference.path, config=EngineConfig(cache_bytes=1 << 24))


def assert_told(told, scores, tokens, count):
    """What was told of tokens is what rows of logits say."""
    expected = scores.log_softmax(-1)
    assert [each.token_id for each in told] == list(tokens)
    got = torch.tensor([each.logprob for each in told])
    torch.testing.assert_close(got, expected[torch.arange(len(told)), tokens], atol=1e-4, rtol=0)
    top = expected.topk(max(count, 1))
    for each, ids, values in zip(told, top.indices, top.values, strict=True):
        assert [token for token, _ in each.top] == ids[:count].tolist()
        if count:
            likely = torch.tensor([logprob for _, logprob in each.top])
            torch.testing.assert_close(likely, values, atol=1e-4, rtol=0)


# penalties, biases and draws change what is chosen, and nothing of what is told
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 5},
    "drawn": {"logprobs": 0, "temperature": 2.0, "top_k": 4, "seed": 1},
    "penalised": {"logprobs": 3, "repetition_penalty": 1.5, "logit_bias": {9: 3.0}},
}


@pytest.mark.parametrize("how", ASKED)
def test_tokens_are_told_as_the_unchanged_distribution_has_them(llm, reference, how):
    asked = SamplingParams(20, ignore_eos=True, **ASKED[how])
    quiet = SamplingParams(20, ignore_eos=True)
    one, other = llm.generate([PROMPT, PROMPT], [asked, quiet])
    scores = reference.logits([*PROMPT, *one.token_ids])[len(PROMPT) - 1 : -1]
    assert_told(one.logprobs, scores, one.token_ids, asked.logprobs)
    assert (other.logprobs, other.prompt_logprobs) == (None, None)
    if how == "greedy":
        assert [each.top[0][0] for each in one.logprobs] == list(other.token_ids)


@pytest.mark.parametrize("config", [{}, {"prefill_chunk": 7}], ids=str)
@pytest.mark.parametrize("lost_at", [None, 2])
def test_tokens_of_prompts_are_told_in_any_chunks_and_after_a_preemption(
    reference, config, lost_at
):
    engine = make_engine(reference.path, **config)
    params = [SamplingParams(4, prompt_logprobs=n, ignore_eos=True) for n in (2, 0)]
    prompts = [PROMPT, PROMPT[:1], PROMPT[3:30]]
    quiet = SamplingParams(4, ignore_eos=True)
    requests = [engine.add_request(*each) for each in zip(prompts, [*params, quiet], strict=True)]
    while engine.has_work:
        engine.step()
        if engine.stats.steps == lost_at:
            engine.scheduler.preempt(engine.scheduler.running[0])
    first, short, other = requests
    assert_told(first.prompt_logprobs, reference.logits(PROMPT)[:-1], PROMPT[1:], 2)
    assert short.prompt_logprobs == other.prompt_logprobs == []
    assert all(len(request.output_ids) == 4 for request in requests)


def test_the_first_token_of_a_prompt_has_nothing_before_it(llm):
    asked = SamplingParams(2, prompt_logprobs=0)
    long, short = llm.generate([PROMPT, [5]], asked)
    assert long.prompt_logprobs[0] is None
    assert [each.token_id for each in long.prompt_logprobs[1:]] == PROMPT[1:]
    assert short.prompt_logprobs == (None,)


def test_more_likely_tokens_than_there_are_is_all_of_them(make_reference):
    path = make_reference(vocab_size=20).path
    engine = make_engine(path)
    request = engine.add_request([5, 6], SamplingParams(1, logprobs=50))
    engine.step()
    assert len(request.logprobs[0].top) == 20
    total = sum(torch.tensor(logprob).exp() for _, logprob in request.logprobs[0].top)
    torch.testing.assert_close(total, torch.tensor(1.0))
