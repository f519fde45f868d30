"""transformers' Granite and Bamba are the oracle: equal logits and tokens from one checkpoint."""

import json
from typing import ClassVar

import pytest

from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, tokens

DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0}


class TestGranite(FamilyLaws):
    family = "granite"
    cases: ClassVar = [
        {**DENSE, "position_embedding_type": None},
        {**DENSE, "layer_types": ["attention"] * 4},
        {**DENSE, "layer_types": None, "mamba_proj_bias": True},
        {"layer_types": ["full_attention", "linear_attention"] * 2, "head_dim": 24},
        {"time_step_limit": (0.5, 0.8)},
        {"mamba_n_groups": 1, "tie_word_embeddings": True, "attention_bias": True},
        {"mamba_n_groups": 8, "mamba_proj_bias": True, "mamba_conv_bias": False},
        {"num_experts_per_tok": 1, "mamba_expand": 4, "mamba_d_conv": 2},
        {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3},
    ]


class TestBamba(FamilyLaws):
    family = "bamba"
    cases: ClassVar = [
        {"attn_layer_indices": [0, 3], "mamba_n_groups": 1, "num_key_value_heads": 4},
        {"attn_layer_indices": [2], "tie_word_embeddings": True, "mamba_d_state": 5},
        {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.45}},
        {"attn_layer_indices": None, "time_step_limit": (0.0, 0.6)},
        {"head_dim": 24, "attention_bias": True},
    ]


@pytest.mark.parametrize("family", ["granite", "bamba"])
def test_steps_of_the_recurrence_keep_to_their_limits_token_by_token(make_reference, family):
    reference = make_reference(family=family, seed=3, time_step_limit=(0.5, 0.8))
    ids = tokens(259, 40)
    assert_close(all_logits(reference.path, ids, prefill_chunk=1), reference.logits(ids))


def test_positions_of_a_kind_that_is_not_known_are_refused_by_name(make_reference):
    path = make_reference(family="bamba").path
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "su", "rope_theta": 1e4, "factor": 2.0}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"rope_type: expected default, .*, got 'su'"):
        all_logits(path, [5])


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("granite", {"layer_types": ["mamba"]}, "num_hidden_layers: expected 1, as typed, got 4"),
        ("granite", {"layer_types": ["mlp"] * 4}, "type of layer 0: expected one of attention, .*"),
        ("granite", {"mamba_n_heads": 7}, "mamba_n_heads: expected heads of 16 that make up 128"),
        ("granite", {"mamba_n_groups": 3}, "mamba_n_groups: expected a divisor of 8, got 3"),
        ("granite", {"num_experts_per_tok": 5}, "num_experts_per_tok: expected at most 4, got 5"),
        ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices: expected a list of layers"),
        ("bamba", {"mlp_bias": True}, "mlp_bias: expected false"),
    ],
)
def test_an_impossible_config_is_explained(make_reference, family, values, message):
    path = make_reference(family=family).path
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(ValueError, match=message):
        all_logits(path, [5])
