"""Layers of one part each: transformers' Nemotron-H is the oracle."""

from typing import ClassVar

from tests.models.family_laws import FamilyLaws
from tests.models.generations import all_logits, assert_close, generate, tokens


class TestNemotronH(FamilyLaws):
    family = "nemotron_h"
    cases: ClassVar = [
        {"moe_latent_size": 24, "mlp_bias": True, "use_bias": True, "use_conv_bias": False},
        {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": False},
        {"layers_block_type": None, "hybrid_override_pattern": "M-*-ME", "n_groups": 1},
        {"time_step_min": 0.7, "n_groups": 8, "layer_norm_epsilon": 1e-3},
        {"mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 7, "conv_kernel": 3},
        {"sliding_window": 16, "head_dim": 24, "tie_word_embeddings": True},
    ]


def test_two_hundred_tokens_are_those_of_transformers(make_reference):
    reference = make_reference(family="nemotron_h", seed=1, n_group=2, moe_latent_size=24)
    prompt = tokens(259, 9)
    (got,), _ = generate(reference.path, [prompt], 200)
    assert got == reference.greedy(prompt, 200)


def test_names_may_be_those_that_transformers_runs(make_reference, tmp_path):
    """Experts in one tensor, and another prefix than published files have."""
    reference = make_reference(family="nemotron_h")
    reference.model.save_pretrained(tmp_path, save_original_format=False)
    ids = tokens(259, 20)
    assert_close(all_logits(tmp_path, ids), reference.logits(ids))


def test_steps_have_a_lower_limit_token_by_token(make_reference):
    reference = make_reference(family="nemotron_h", seed=3, time_step_min=0.8)
    ids = tokens(259, 30)
    assert_close(all_logits(reference.path, ids, prefill_chunk=1), reference.logits(ids))
