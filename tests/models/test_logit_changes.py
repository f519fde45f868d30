"""Penalties, biases and bans: what transformers and OpenAI have them do, whatever runs beside."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process

from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.engine import engine
from blockstride.models.engine.logit_changes import LogitChanges, change_logits
from blockstride.models.engine.token_history import ROOM, TokenHistory
from tests.models.generations import make_engine

VOCAB, ENDS = 64, frozenset({7})
PROMPT, OUTPUT = [3, 9, 9, 40, 3], [9, 12, 12, 12, 63]


def by_others(logits: torch.Tensor, params: SamplingParams, output: list[int]) -> torch.Tensor:
    """The logits of one row, changed by transformers' processors, and by OpenAI's formula."""
    ids: Any = torch.tensor([PROMPT + output])
    scores: Any = logits[None].float()
    if params.logit_bias:
        bias: Any = {(token,): bias for token, bias in params.logit_bias.items()}
        scores = logits_process.SequenceBiasLogitsProcessor(bias)(ids, scores)
    if params.repetition_penalty != 1:
        penalty = params.repetition_penalty
        scores = logits_process.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB)
    scores = scores - params.presence_penalty * (counts > 0) - params.frequency_penalty * counts
    if params.bad_token_ids:
        bad = [[token] for token in params.bad_token_ids]
        scores = logits_process.NoBadWordsLogitsProcessor(bad, eos_token_id=None)(ids, scores)
    if params.allowed_token_ids is not None:
        allowed = sorted(params.allowed_token_ids)
        only = logits_process.PrefixConstrainedLogitsProcessor(lambda *_: allowed, num_beams=1)
        scores = only(ids, scores)
    if params.min_tokens:
        ends = sorted({*params.stop_token_ids, *(() if params.ignore_eos else ENDS)})
        least = logits_process.MinNewTokensLengthLogitsProcessor(
            len(PROMPT), params.min_tokens, ends
        )
        scores = least(ids, scores)
    return scores[0]


ASKED = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 0.7},
    {"frequency_penalty": -0.4},
    {"logit_bias": {0: 2.5, 9: -100.0, 41: 0.125}},
    {"bad_token_ids": (0, 63)},
    {"allowed_token_ids": [5, 9, 12]},
    {"min_tokens": 6, "stop_token_ids": [11]},
    {"min_tokens": 6, "stop_token_ids": [11], "ignore_eos": True},
    {"min_tokens": 5, "stop_token_ids": [11]},
    {
        "logit_bias": {9: 3.0, 12: -1.5, 5: 1.0},
        "repetition_penalty": 1.7,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "allowed_token_ids": {9, 12, 5, 40, 7},
        "bad_token_ids": [40],
        "min_tokens": 20,
    },
]


def changed(rows, asked, outputs):
    """Our logits of several requests of one prompt, all in one step."""
    params = [SamplingParams(**each) for each in asked]
    changes = [LogitChanges(each, PROMPT, ENDS, VOCAB) for each in params]
    edits = [(i, c.edits(o)) for i, (c, o) in enumerate(zip(changes, outputs, strict=True))]
    return change_logits(rows, edits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("output", [[], OUTPUT], ids=["at first", "later"])
def test_rows_of_one_batch_are_changed_as_by_transformers_and_openai(output, dtype):
    torch.manual_seed(0)
    rows = (3 * torch.randn(len(ASKED) + 1, VOCAB)).to(dtype)
    before = rows.clone()
    got = changed(rows[1:], ASKED, [output] * len(ASKED))
    for row, mine, asked in zip(rows[1:], got, ASKED, strict=True):
        torch.testing.assert_close(mine, by_others(row, SamplingParams(**asked), output))
    # log-probabilities are still to be told of these
    assert torch.equal(rows, before)


def test_a_row_is_changed_alike_beside_others_and_alone():
    torch.manual_seed(1)
    rows = 3 * torch.randn(len(ASKED), VOCAB)
    together = changed(rows, ASKED, [OUTPUT] * len(ASKED))
    for i, asked in enumerate(ASKED):
        assert torch.equal(changed(rows[i : i + 1], [asked], [OUTPUT])[0], together[i])


def test_a_history_that_grows_token_by_token_is_that_of_the_whole():
    random = np.random.default_rng(0)
    prompt, output = random.integers(0, 900, 50).tolist(), random.integers(0, 900, 1500).tolist()
    growing = TokenHistory(prompt)
    for n in (0, 1, 2, 3, ROOM, 700, 1500):
        ids, counts = growing.read(output[:n])
        expected = np.bincount(output[:n], minlength=900)
        assert sorted(ids) == sorted(set(prompt) | set(output[:n]))
        assert (counts == expected[ids]).all()


GREEDY = {"max_tokens": 30, "ignore_eos": True}
REQUESTS = [
    SamplingParams(**GREEDY, repetition_penalty=1.4),
    SamplingParams(**GREEDY, presence_penalty=0.8, frequency_penalty=0.3),
    SamplingParams(30, 0.9, seed=5, ignore_eos=True, repetition_penalty=1.2, min_p=0.05),
    SamplingParams(**GREEDY, logit_bias={20: 3.0}, bad_token_ids={30, 31}),
    SamplingParams(**GREEDY),
]
PROMPTS = [[5, 6, 7] * 15, [200, 201], list(range(3, 60)), [9] * 33, [11, 12, 13]]


def run(path, prompts, params, preempt_at=(), **config):
    """The tokens of requests that run together; some lose their blocks after some steps."""
    made = make_engine(path, **config)
    requests = [made.add_request(*each) for each in zip(prompts, params, strict=True)]
    while made.has_work:
        made.step()
        if made.stats.steps in preempt_at:
            made.scheduler.preempt(made.scheduler.running[-1])
            made.scheduler.preempt(made.scheduler.running[0])
    assert made.scheduler.num_preemptions == 2 * len(preempt_at)
    return [request.output_ids for request in requests]


def test_greedy_texts_with_a_repetition_penalty_are_those_of_transformers(reference):
    penalty = 1.4
    for prompt in PROMPTS[:2]:
        out = reference.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=30,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=0,
        )
        [mine] = run(reference.path, [prompt], REQUESTS[:1])
        assert mine == out[0, len(prompt) :].tolist()
        assert mine != run(reference.path, [prompt], REQUESTS[-1:])[0]


def test_a_request_gives_the_same_in_any_batch_and_chunks_and_after_a_preemption(reference):
    alone = [run(reference.path, [p], [q])[0] for p, q in zip(PROMPTS, REQUESTS, strict=True)]
    assert run(reference.path, PROMPTS, REQUESTS) == alone
    assert run(reference.path, PROMPTS, REQUESTS, prefill_chunk=7) == alone
    assert run(reference.path, PROMPTS, REQUESTS, preempt_at=(9, 17)) == alone


def test_no_logits_are_copied_where_nobody_asks(reference, monkeypatch):
    def refuse(*_):
        raise AssertionError("logits were changed")

    monkeypatch.setattr(engine, "change_logits", refuse)
    assert len(run(reference.path, PROMPTS[:1], REQUESTS[-1:])[0]) == 30
    assert len(run(reference.path, PROMPTS[:1], REQUESTS[:1])[0]) == 0


def test_an_end_comes_no_sooner_than_min_tokens(reference):
    llm = LLM(reference.path, config=EngineConfig(cache_bytes=1 << 24))
    (free,) = llm.generate([5, 6, 7], SamplingParams(12, ignore_eos=True))
    end = free.token_ids[2]
    first = free.token_ids.index(end) + 1
    (early,) = llm.generate([5, 6, 7], SamplingParams(12, stop_token_ids=[end], ignore_eos=True))
    assert len(early.token_ids) == first
    asked = SamplingParams(12, stop_token_ids=[end], ignore_eos=True, min_tokens=first + 3)
    (later,) = llm.generate([5, 6, 7], asked)
    assert len(later.token_ids) >= first + 3
    assert end not in later.token_ids[: first + 3]
