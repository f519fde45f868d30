"""Families whose parts ranks share in ways of their own: their tokens are those of transformers."""

import pytest

from tests.models.distributed.deployments import (
    all_blocks_are_free,
    engine,
    greedy,
    tokens_of,
    tokens_of_transformers,
    until,
)

PROMPTS = ["a", "In the beginning", "x" * 47]
FALCON = {
    "attention_bias": True,
    "mamba_proj_bias": True,
    "projectors_bias": True,
    "mamba_rms_norm": True,
    "ssm_multipliers": [0.5, 1.4, 0.9, 1.2, 0.3],
    "ssm_out_multiplier": 0.7,
}
ZAMBA = {
    "use_shared_attention_adapter": True,
    "use_mem_rope": True,
    "add_bias_linear": True,
    "num_mem_blocks": 2,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
}
BIASES = {"attention_bias": True, "mlp_bias": True}
KIMI = {"attention_bias": True, "q_lora_rank": 16}
NEMOTRON = {"moe_latent_size": 24, "mlp_bias": True, "use_bias": True, "n_group": 2}


@pytest.mark.parametrize(
    ("tp_size", "config"),
    [
        (2, {"family": "mamba", "use_bias": True}),
        (2, {"family": "falcon_mamba"}),
        (4, {"family": "mamba2", "use_bias": True}),
        # two groups of a norm, and two KV heads, among four ranks
        (4, {"family": "nemotron_h", **NEMOTRON}),
        (4, {"family": "falcon_h1", **FALCON}),
        (2, {"family": "zamba2", **ZAMBA}),
        (4, {"family": "zamba2", **ZAMBA}),
        # latents whole on every rank
        (2, {"family": "kimi_linear", **KIMI}),
        # one KV head for two ranks, or two for four; biases that are added once
        (2, {"family": "llama", **BIASES, "num_key_value_heads": 1}),
        (2, {"family": "gemma2", "num_key_value_heads": 1}),
        (4, {"family": "gpt_oss"}),
        (2, {"family": "mixtral"}),
        (4, {"family": "qwen2_moe"}),
        (2, {"family": "qwen3", "attention_bias": True, "num_key_value_heads": 1}),
    ],
)
def test_ranks_together_give_the_tokens_of_transformers(deploy, make_reference, tp_size, config):
    reference = make_reference(**config)
    llm = deploy(reference.path, config=engine(tp_size=tp_size, prefill_chunk=32))
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 10)
    assert tokens_of(llm, PROMPTS, greedy(10)) == wanted


@pytest.mark.parametrize(
    ("config", "prefill", "decode"),
    [
        ({"family": "mamba"}, {"tp_size": 2}, {"layout": "BHLNC", "conv_order": "SD"}),
        ({"family": "falcon_mamba"}, {}, {"tp_size": 2, "policy": "split"}),
        ({"family": "mamba2", "n_groups": 1}, {}, {"tp_size": 2, "layout": "BHLNC"}),
        ({"family": "nemotron_h"}, {"block_size": 32, "layout": "LBNHC"}, {"tp_size": 2}),
        ({"family": "falcon_h1"}, {"tp_size": 2, "policy": "unified"}, {"block_size": 48}),
        ({"family": "zamba2", **ZAMBA}, {"layout": "BHLNC"}, {"tp_size": 2, "block_size": 32}),
        ({"family": "kimi_linear"}, {"tp_size": 2}, {"layout": "LBNHC", "block_size": 48}),
        # windows of 20 tokens in some layers
        ({"family": "gemma2"}, {"layout": "LBNHC"}, {"tp_size": 2, "block_size": 32}),
        ({"family": "gpt_oss"}, {"tp_size": 2, "policy": "unified"}, {"layout": "BHLNC"}),
        ({"family": "mistral"}, {}, {"tp_size": 4, "layout": "BHLNC", "block_size": 48}),
    ],
)
def test_requests_are_handed_over_between_unequal_engines(
    deploy, make_reference, config, prefill, decode
):
    reference = make_reference(**config)
    llm = deploy(reference.path, prefill=engine(**prefill), decode=engine(**decode))
    wanted = tokens_of_transformers(reference, llm, PROMPTS, 10)
    assert tokens_of(llm, PROMPTS, greedy(10)) == wanted
    assert llm.reports()[1].transfers.requests == len(PROMPTS)
    until(lambda: all_blocks_are_free(llm))
