"""Attention and Mamba-2 side by side: transformers' Falcon-H1 is the oracle."""

from typing import ClassVar

import pytest

from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, generate, tokens

FACTORS = {
    "embedding_multiplier": 3.5,
    "lm_head_multiplier": 0.4,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 1.7,
    "key_multiplier": 0.6,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.5, 1.4, 0.9, 1.2, 0.3],
    "mlp_multipliers": [0.9, 0.6],
}
BIASES = {
    "attention_bias": True,
    "mamba_conv_bias": False,
    "mamba_proj_bias": True,
    "projectors_bias": True,
}


class TestFalconH1(FamilyLaws):
    family = "falcon_h1"
    cases: ClassVar = [
        FACTORS,
        {**FACTORS, **BIASES, "mamba_rms_norm": True, "tie_word_embeddings": True},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        {"mamba_d_ssm": None, "mamba_expand": 3, "mamba_n_groups": 1, "projectors_bias": True},
        {"mamba_d_ssm": 80, "mamba_n_groups": 8, "time_step_limit": (0.5, 0.8)},
        {"rope_parameters": {"rope_theta": 1e11, "rope_type": "default"}, "head_dim": 24},
    ]


@pytest.mark.parametrize("factor", FACTORS)
def test_each_factor_counts(make_reference, factor):
    reference = make_reference(family="falcon_h1", num_hidden_layers=1, **{factor: FACTORS[factor]})
    ids = tokens(259, 12)
    assert_close(all_logits(reference.path, ids), reference.logits(ids))


def test_two_hundred_tokens_are_those_of_transformers(make_reference):
    reference = make_reference(family="falcon_h1", **FACTORS, **BIASES, mamba_rms_norm=True)
    prompt = tokens(259, 9)
    (got,), _ = generate(reference.path, [prompt], 200)
    assert got == reference.greedy(prompt, 200)
