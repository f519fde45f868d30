"""Sampling: parameters are checked, drawn tokens follow the distribution, batches don't matter."""

import numpy as np
import pytest
import torch

from blockstride.models.engine.sampling import SamplingParams, sample

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0, -1.0]])


def draws(count, **kwargs):
    generator = np.random.default_rng(0)
    params = SamplingParams(temperature=1.0, **kwargs)
    return [sample(LOGITS, [params], [generator])[0] for _ in range(count)]


def test_temperature_zero_takes_the_most_likely_token():
    assert sample(LOGITS, [SamplingParams()], [np.random.default_rng(0)]) == [3]


def test_drawn_tokens_follow_the_softmax():
    share = np.bincount(draws(4000), minlength=5) / 4000
    expected = LOGITS[0].softmax(0).numpy()
    assert np.abs(share - expected).max() < 0.03


def test_temperature_flattens_the_distribution():
    generator = np.random.default_rng(0)
    hot = SamplingParams(temperature=2.0)
    tokens = [sample(LOGITS, [hot], [generator])[0] for _ in range(4000)]
    share = np.bincount(tokens, minlength=5) / 4000
    assert np.abs(share - (LOGITS[0] / 2).softmax(0).numpy()).max() < 0.03


def test_top_k_leaves_the_k_most_likely():
    assert set(draws(500, top_k=2)) == {2, 3}


def test_top_p_leaves_the_fewest_tokens_that_reach_it():
    # softmax: 0.03, 0.09, 0.23, 0.63, 0.01
    assert set(draws(500, top_p=0.6)) == {3}
    assert set(draws(500, top_p=0.7)) == {2, 3}


def test_a_seeded_row_draws_the_same_in_any_batch():
    torch.manual_seed(0)
    logits = torch.randn(6, 50)
    params = [SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=i) for i in range(6)]
    alone = [
        sample(logits[i : i + 1], [params[i]], [np.random.default_rng(i)])[0] for i in range(6)
    ]
    together = sample(logits, params, [np.random.default_rng(i) for i in range(6)])
    mixed = sample(
        logits.flip(0),
        [SamplingParams(), *params[::-1][1:]],
        [np.random.default_rng(i) for i in reversed(range(6))],
    )
    assert together == alone
    assert mixed[1:] == alone[::-1][1:]
    assert mixed[0] == int(logits[5].argmax())


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
    ],
)
def test_a_parameter_out_of_range_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}: expected"):
        SamplingParams(**{field: value})
