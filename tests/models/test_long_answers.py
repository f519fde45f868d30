"""Long answers of hybrids are those of transformers."""

import pytest

from tests.models.generations import generate, tokens

DELTA = {"layer_types": ["linear_attention", "full_attention"]}
CONV = {"layer_types": ["conv", "full_attention"]}
FAMILIES = {
    "qwen3_5": DELTA,
    "qwen3_5_moe": DELTA,
    "qwen3_next": DELTA,
    "olmo_hybrid": DELTA,
    "kimi_linear": {**DELTA, "q_lora_rank": 16},
    "lfm2": {**CONV, "full_attn_idxs": None},
    "lfm2_moe": CONV,
}


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request, make_reference):
    """A small model of each family."""
    layers = {"num_hidden_layers": 2, **FAMILIES[request.param]}
    return make_reference(family=request.param, seed=4, **layers)


def test_200_tokens_are_those_of_transformers(reference):
    ids = tokens(259, 23)
    (output,), _ = generate(reference.path, [ids])
    assert output == reference.greedy(ids, 200)
