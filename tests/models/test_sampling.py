"""Sampling: parameters are checked, drawn tokens follow the distribution, batches don't matter."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process

from blockstride.models import SamplingParams
from blockstride.models.engine.noise import exponential, noise_key
from blockstride.models.engine.sampler import sample
from blockstride.models.engine.sampling import answer_seed, answers

LOGITS = torch.tensor([0.0, 1.0, 2.0, 3.0, -1.0])


def draws(logits: torch.Tensor, count: int, seed: int = 0, **params: Any) -> torch.Tensor:
    """What a request draws at its first `count` positions, where logits never change."""
    asked = SamplingParams(**{"temperature": 1.0, **params})
    rows = logits.expand(count, -1)
    return torch.tensor(sample(rows, [asked] * count, [seed] * count, range(count)))


def by_transformers(
    logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
) -> torch.Tensor:
    """The distribution that transformers draws from, whatever the tokens before were."""
    ids: Any = None
    scores = logits_process.TemperatureLogitsWarper(float(temperature))(ids, logits[None])
    if top_k:
        scores = logits_process.TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = logits_process.TopPLogitsWarper(top_p)(ids, scores)
    if min_p > 0:
        scores = logits_process.MinPLogitsWarper(min_p)(ids, scores)
    return scores[0].softmax(0)


def assert_follow(tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """Pearson's chi-square, over tokens that are expected often enough, within 5 deviations."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    assert not counts[expected == 0].any()
    expected = expected.double() / expected.sum() * len(tokens)
    often = expected >= 5
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    freedom = len(counts) - 1
    statistic = ((counts - expected).square() / expected.clamp(min=1)).sum().item()
    assert statistic < freedom + 5 * math.sqrt(2 * freedom + 1)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 64},
        {"top_k": 1000},
        {"top_p": 0.4},
        {"top_p": 0.95},
        {"top_p": 1e-9},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.7},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_drawn_tokens_follow_the_distribution_of_transformers(params):
    torch.manual_seed(0)
    logits = torch.randn(64) * 2
    assert_follow(draws(logits, 4_000, **params), by_transformers(logits, **params))


def test_rows_of_one_batch_each_follow_their_own_parameters():
    torch.manual_seed(0)
    logits = torch.randn(64) * 2
    asked = [{"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.5}, {"top_k": 30, "top_p": 0.8}, {}]
    asked.append({"min_p": 0.2})
    params = [SamplingParams(**{"temperature": 1.0, **each}) for each in asked]
    params.append(SamplingParams())
    count = 800
    rows = logits.expand(count * len(params), -1)
    tokens = sample(rows, params * count, range(len(rows)), [0] * len(rows))
    *drawn, greedy = torch.tensor(tokens).view(count, -1).T
    assert greedy.eq(logits.argmax()).all()
    for mine, each in zip(drawn, asked, strict=True):
        assert_follow(mine, by_transformers(logits, **each))


@pytest.mark.parametrize("vocab", [1, 2, 1000, 65_537])
@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_p": 0.9}], ids=str)
def test_tokens_stay_inside_any_vocabulary(vocab, params):
    torch.manual_seed(vocab)
    kept = by_transformers(logits := torch.randn(vocab), **params)
    assert kept[draws(logits, 5, **params)].all()


def test_of_equal_tokens_the_first_are_kept():
    equal = torch.zeros(8)
    assert set(draws(equal, 200, top_k=3).tolist()) == {0, 1, 2}
    assert set(draws(equal, 200, top_p=0.5).tolist()) == {0, 1, 2, 3}
    two_levels = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    assert set(draws(two_levels, 200, top_k=3).tolist()) == {0, 1, 3}
    assert set(draws(two_levels, 200, top_k=4, top_p=0.8).tolist()) == {0, 1, 3}


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_the_least_temperatures_take_the_most_likely_token(temperature, more):
    """And neighbours in the batch stay as they are."""
    cold = SamplingParams(temperature=temperature, **more)
    warm = SamplingParams(temperature=1.0)
    logits = torch.stack([LOGITS, LOGITS * 1e4, LOGITS])
    tokens = sample(logits, [cold, cold, warm], [0, 1, 2], [0] * 3)
    assert tokens == [3, 3, draws(LOGITS, 1, seed=2).item()]


def test_the_greatest_temperatures_take_any_token():
    assert_follow(draws(LOGITS, 2000, temperature=1.7e308), torch.full((5,), 0.2))


def test_low_precision_logits_are_drawn_from_as_they_are():
    assert_follow(draws(LOGITS.bfloat16(), 5000), LOGITS.softmax(0))


@pytest.mark.parametrize("scores", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {}, {"top_k": 1}, {"top_p": 0.5}], ids=str
)
def test_a_row_that_is_no_distribution_is_told_and_leaves_the_others_alone(scores, params):
    asked = SamplingParams(**{"temperature": 1.0, **params})
    bad = torch.zeros(5)
    bad[1:3] = torch.tensor(scores)
    bad = bad if scores[1] == 1.0 else torch.full((5,), scores[0])
    rows = torch.stack([LOGITS, bad, LOGITS])
    tokens = sample(rows, [asked] * 3, [4, 5, 6], [7] * 3)
    others = sample(rows[::2], [asked] * 2, [4, 6], [7] * 2)
    assert tokens == [others[0], -1, others[1]]


def test_tokens_that_cannot_be_are_never_drawn():
    masked = LOGITS.clone()
    masked[[1, 3]] = -math.inf
    cases: list[dict[str, Any]] = [{}, {"top_k": 4}, {"top_p": 0.99}, {"temperature": 1e300}]
    for params in cases:
        assert set(draws(masked, 300, **params).tolist()) == {0, 2, 4}


def test_a_seeded_row_draws_the_same_in_any_batch():
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    params = [SamplingParams(temperature=0.8, top_k=20, top_p=0.9)] * 6
    seeds, positions = [0, 5, 2**64, 2**70 + 3, 1, 9], [3, 0, 0, 10**6, 2, 7]
    alone = [
        sample(logits[i : i + 1], params[:1], seeds[i : i + 1], positions[i : i + 1])[0]
        for i in range(6)
    ]
    assert sample(logits, params, seeds, positions) == alone
    mixed = sample(logits.flip(0), [SamplingParams(), *params[1:]], seeds[::-1], positions[::-1])
    assert mixed[1:] == alone[::-1][1:]
    assert mixed[0] == int(logits[5].argmax())


@pytest.mark.parametrize("params", [{}, {"top_k": 200}, {"temperature": 0.7}], ids=str)
def test_logits_that_are_rounded_otherwise_hardly_ever_change_a_draw(params):
    """Two distributions at a distance `d` can't be drawn from alike more often than in 1 - d."""
    torch.manual_seed(0)
    logits = torch.randn(1000)
    moved = logits + 1e-2 * torch.randn(1000)
    count = 1500
    distance = (by_transformers(logits, **params) - by_transformers(moved, **params)).abs().sum()
    # top-k itself lets go of a token here and there
    bound = distance.item() * count + 5 * math.sqrt(distance.item() * count)
    assert (draws(logits, count, **params) != draws(moved, count, **params)).sum() < bound
    towards = torch.where(torch.rand(1000) < 0.5, -math.inf, math.inf)
    moved = torch.nextafter(logits, towards)
    assert torch.equal(draws(logits, count, **params), draws(moved, count, **params))


def test_noise_belongs_to_seed_position_and_id():
    keys = [noise_key(seed, position) for seed in (0, 1, 2**64, 2**65) for position in range(50)]
    assert len(set(keys)) == len(keys)
    noise = exponential(torch.tensor(keys), 4000)
    assert noise.unique().numel() > 0.95 * noise.numel()
    assert torch.equal(noise[:, :10], exponential(torch.tensor(keys), 10))


def test_noise_is_exponential_and_uncorrelated():
    keys = torch.tensor([noise_key(seed, position) for seed in range(20) for position in range(20)])
    noise = exponential(keys, 2500).double()
    ordered = (-noise.flatten()).exp().sort().values
    distance = (ordered - torch.arange(len(ordered)) / len(ordered)).abs().max()
    assert distance < 2.0 / math.sqrt(len(ordered))
    for a, b in ((noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1]), (noise[20:], noise[:-20])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(a.numel())
    assert np.isfinite(noise.numpy()).all()
    assert noise.min() > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("seed", -1),
        ("stop", ("",)),
        ("min_tokens", -1),
        ("min_p", 1.5),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e300),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", 1e300),
        ("logit_bias", {3: float("-inf")}),
        ("logit_bias", {-3: 1.0}),
        ("bad_token_ids", [-1]),
        ("allowed_token_ids", []),
        ("logprobs", -1),
        ("logprobs", 101),
        ("prompt_logprobs", -1),
        ("n", 0),
        ("n", 10**6),
    ],
)
def test_a_parameter_out_of_range_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}: expected"):
        SamplingParams(**{field: value})


def test_only_bad_tokens_cannot_be_allowed():
    with pytest.raises(ValueError, match=r"^allowed_token_ids: expected None, or a token that is"):
        SamplingParams(allowed_token_ids={3, 4}, bad_token_ids={3, 4, 5})


def test_answers_have_seeds_that_no_other_answer_has():
    seeds = [0, 1, 2, 2**63, 2**64 - 1, 2**130, 2**130 + 1]
    keys = {noise_key(answer_seed(seed, i) or 0, 0) for seed in seeds for i in range(100)}
    assert len(keys) == 100 * len(seeds)
    assert answers(SamplingParams(seed=7, n=3))[0] == SamplingParams(seed=7)
    assert [each.seed for each in answers(SamplingParams(n=3))] == [None] * 3
