"""transformers' RecurrentGemma is the oracle: equal logits and tokens from one checkpoint."""

from typing import ClassVar

from tests.models.family_laws import FamilyLaws
from tests.models.generations import generate, tokens


class TestRecurrentGemma(FamilyLaws):
    family = "recurrent_gemma"
    cases: ClassVar = [
        {"block_types": ["recurrent"], "conv1d_width": 2},
        {"block_types": ["attention", "recurrent"], "num_hidden_layers": 3},
        {"num_key_value_heads": None, "attention_bias": True, "attention_window_size": 5},
        {"lru_width": 96, "num_key_value_heads": 2, "intermediate_size": 101},
        {"logits_soft_cap": 2.0, "rms_norm_eps": 1e-2, "tie_word_embeddings": False},
        {"partial_rotary_factor": 0.25, "rope_theta": 50.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "hidden_size": 48},
    ]


def test_two_hundred_tokens_are_those_of_transformers(make_reference):
    reference = make_reference(family="recurrent_gemma", attention_bias=True)
    prompt = tokens(259, 9)
    (got,), _ = generate(reference.path, [prompt], 200, prefill_chunk=4)
    assert got == reference.greedy(prompt, 200)
