"""transformers' models of attention alone are the oracle: equal logits and tokens."""

import json
from typing import ClassVar

import pytest

from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, generate, tokens

THETA = {"rope_theta": 500.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    **THETA,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    **THETA,
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0, 2.0, 2.5],
    "long_factor": [1.0, 1.4, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
}


class TestLlama(FamilyLaws):
    family = "llama"
    cases: ClassVar = [
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {"rope_parameters": LLAMA3, "head_dim": 32, "num_key_value_heads": 1},
        {"rope_parameters": {**THETA, "rope_type": "linear", "factor": 3.0}},
        # 70 tokens, past the positions that the model was made for or was trained on, and before
        {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}, "max_position_embeddings": 71},
        {"rope_parameters": {**LONG, "original_max_position_embeddings": 64}},
        {"rope_parameters": {**LONG, "original_max_position_embeddings": 71}},
        {"rope_parameters": YARN, "num_key_value_heads": 4, "num_hidden_layers": 1},
        {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}},
        {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2}},
    ]


class TestMistral(FamilyLaws):
    family = "mistral"
    cases: ClassVar = [
        {"sliding_window": None},
        {"sliding_window": 1},
        {"sliding_window": 69, "head_dim": 16},
        {"num_key_value_heads": 1, "rope_parameters": THETA},
        {"tie_word_embeddings": True, "sliding_window": 33},
        {"rope_parameters": YARN, "rms_norm_eps": 1e-5},
    ]


class TestMixtral(FamilyLaws):
    family = "mixtral"
    cases: ClassVar = [
        {"sliding_window": 20},
        {"num_experts_per_tok": 1},
        {"num_experts_per_tok": 4, "num_key_value_heads": 4},
        {"rope_parameters": THETA, "head_dim": 24},
        {"tie_word_embeddings": True, "rms_norm_eps": 1e-4},
        {"num_local_experts": 3, "num_hidden_layers": 2},
    ]


class TestQwen2(FamilyLaws):
    family = "qwen2"
    cases: ClassVar = [
        {"use_sliding_window": False},
        {"max_window_layers": 0},
        {"layer_types": ["sliding_attention", "full_attention"] * 2},
        {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e6}},
        {"num_key_value_heads": 4, "rope_parameters": YARN},
        {"num_key_value_heads": 1, "hidden_size": 48, "sliding_window": 7},
    ]


class TestQwen2Moe(FamilyLaws):
    family = "qwen2_moe"
    cases: ClassVar = [
        {"norm_topk_prob": True, "num_experts_per_tok": 3},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 3], "use_sliding_window": False},
        {"qkv_bias": False, "tie_word_embeddings": True},
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
        {"num_experts": 2, "rope_parameters": THETA, "num_key_value_heads": 4},
    ]


class TestQwen3(FamilyLaws):
    family = "qwen3"
    cases: ClassVar = [
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        {"attention_bias": True, "tie_word_embeddings": True},
        {"rope_parameters": YARN, "head_dim": 32},
        {"num_key_value_heads": 1, "rms_norm_eps": 1e-3},
        {"num_key_value_heads": 4, "rope_parameters": {"rope_theta": 1e6}},
        {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": True, "sliding_window": 9},
    ]


class TestQwen3Moe(FamilyLaws):
    family = "qwen3_moe"
    cases: ClassVar = [
        {"norm_topk_prob": False, "num_experts_per_tok": 3},
        {"decoder_sparse_step": 2, "attention_bias": True},
        {"mlp_only_layers": [1]},
        {"use_sliding_window": True, "sliding_window": 20},
        {"tie_word_embeddings": True, "head_dim": 16},
        {"rope_parameters": YARN, "num_key_value_heads": 4},
    ]


class TestGemma2(FamilyLaws):
    family = "gemma2"
    cases: ClassVar = [
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 48, "attention_bias": True},
        {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 5},
        {"tie_word_embeddings": False, "num_key_value_heads": 1},
        {"rope_parameters": THETA, "rms_norm_eps": 1e-3, "num_key_value_heads": 4},
    ]


class TestGptOss(FamilyLaws):
    family = "gpt_oss"
    cases: ClassVar = [
        {"rope_parameters": THETA},
        {"attention_bias": False, "num_experts_per_tok": 1},
        {"swiglu_limit": 0.3, "swiglu_alpha": 1.0},
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"], "num_experts_per_tok": 4},
        {"sliding_window": 1, "num_key_value_heads": 1},
        {"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 16},
    ]


class TestGranite(FamilyLaws):
    family = "granite3"
    cases: ClassVar = [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "logits_scaling": 8.0},
        {"rope_parameters": THETA, "num_key_value_heads": 1},
        {"residual_multiplier": 0.22, "embedding_multiplier": 12.0},
        {"attention_multiplier": 0.015625, "num_key_value_heads": 4},
        {"rms_norm_eps": 1e-3, "num_hidden_layers": 1},
    ]


def test_positions_that_depend_on_the_length_are_those_of_the_whole_prompt(make_reference):
    """Also in its first parts, which are no longer than what the model was trained on."""
    said = {**LONG, "original_max_position_embeddings": 64}
    reference = make_reference(family="llama", rope_parameters=said)
    ids = tokens(259, 70)
    assert_close(all_logits(reference.path, ids, prefill_chunk=16), reference.logits(ids))


def test_positions_grow_with_a_sequence_past_those_that_a_model_was_made_for(make_reference):
    said = {"rope_type": "dynamic", "factor": 3.0}
    reference = make_reference(family="llama", rope_parameters=said, max_position_embeddings=40)
    ids = tokens(259, 70)
    assert_close(all_logits(reference.path, ids, max_len=100), reference.logits(ids))


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("llama", {"hidden_act": "relu"}, "hidden_act: expected 'silu', got 'relu'"),
        ("llama", {"rope_parameters": {"rope_type": "su"}}, "rope_type: expected default, .*'su'"),
        ("llama", {"rope_parameters": {**YARN, "factor": -1}}, "factor: expected a positive numb"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor: .*, got nothing"),
        ("llama", {"rope_parameters": {**LONG, "long_factor": [1.0]}}, "long_factor: .* 8 numbers"),
        ("llama", {"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor: "),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most 4, got 9"),
        ("qwen2_moe", {"mlp_only_layers": 3}, "mlp_only_layers: expected a list of layers, got 3"),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention: expected",
        ),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping: expected a positive nu"),
        ("gpt_oss", {"swiglu_limit": -1.0}, "swiglu_limit: expected a positive number, got -1.0"),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "quantization_config: expected plain float32, .*, got weights quantised by mxfp4",
        ),
    ],
)
def test_what_cannot_run_is_named(make_reference, family, values, message):
    path = make_reference(family=family).path
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **values}))
    with pytest.raises(ValueError, match=message):
        all_logits(path, [5])


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "gemma2", "gpt_oss"]
)
def test_two_hundred_tokens_are_the_most_likely_ones(make_reference, family):
    reference = make_reference(family=family, num_hidden_layers=2, seed=5)
    prompts = [tokens(259, count, seed=count) for count in (9, 40)]
    answers, _ = generate(reference.path, prompts, 200)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert reference.follows(prompt, answer)
