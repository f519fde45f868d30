"""Why a request ended: of itself, at a limit, or by its own trouble, which is nobody else's."""

import pytest

from blockstride.models import LLM, SamplingParams
from blockstride.models.engine import engine


@pytest.fixture(scope="module")
def llm(reference):
    return LLM(reference.path)


def ended(llm, *params):
    """Requests of one prompt, run together to their ends."""
    requests = [llm.engine.add_request([5, 6, 7], each) for each in params]
    while llm.engine.has_work:
        llm.engine.step()
    llm.engine.blocks.check()
    return requests


def test_an_end_token_ends_a_request_even_as_the_last_that_is_allowed(llm):
    (whole,) = ended(llm, SamplingParams(max_tokens=5, ignore_eos=True))
    assert whole.finish_reason == "length"
    last = whole.output_ids[-1]
    allowed = whole.output_ids.index(last) + 1
    params = SamplingParams(max_tokens=allowed, stop_token_ids=frozenset([last]), ignore_eos=True)
    (request,) = ended(llm, params)
    assert (request.output_ids, request.finish_reason) == (whole.output_ids[:allowed], "stop")


def test_an_exception_in_one_requests_sampling_ends_that_one(llm, monkeypatch):
    good = SamplingParams(max_tokens=6, ignore_eos=True)
    bad = SamplingParams(max_tokens=6, temperature=0.5, ignore_eos=True)
    (alone,) = ended(llm, good)
    sample, calls = engine.sample, []

    def fail_for_some(logits, params, *rest):
        calls.append(len(params))
        if bad in params and len(calls) > 2:
            raise ArithmeticError("no luck")
        return sample(logits, params, *rest)

    monkeypatch.setattr(engine, "sample", fail_for_some)
    one, failed, other = ended(llm, good, bad, good)
    assert one.output_ids == other.output_ids == alone.output_ids
    assert one.finish_reason == other.finish_reason == "length"
    assert (failed.finish_reason, failed.error) == ("error", "ArithmeticError: no luck")
    assert len(failed.output_ids) == 2
