"""Published files of families: at full size planned, with smaller widths run."""

import pytest

from blockstride.models import cache_specs
from tests.models import published_deltas, published_kimi
from tests.models import published_mambas as files
from tests.models.family_laws import expect_a_model_of

# name -> what is published, what is smaller where it runs, caches of tokens, and of states
PUBLISHED = {
    "mamba-130m": (
        {**files.MAMBA_1, **files.OLDER, "d_model": 768, "n_layer": 24, "hidden_size": 768}
        | {"intermediate_size": 1536, "num_hidden_layers": 24, "time_step_rank": 48},
        {**files.SMALL_MAMBA, "intermediate_size": 128},
        (0, 24),
    ),
    "mamba-2.8b": (
        {**files.MAMBA_1, **files.OLDER, "d_model": 2560, "n_layer": 64, "hidden_size": 2560}
        | {"intermediate_size": 5120, "num_hidden_layers": 64, "time_step_rank": 160},
        {**files.SMALL_MAMBA, "intermediate_size": 128},
        (0, 64),
    ),
    "falcon-mamba-7b": (
        files.FALCON_MAMBA,
        {**files.SMALL_MAMBA, "intermediate_size": 128},
        (0, 64),
    ),
    "falcon3-mamba-7b": (
        {**files.FALCON_MAMBA, "mixer_rms_eps": 1e-6, "use_falcon_mambapy": False},
        {**files.SMALL_MAMBA, "intermediate_size": 128},
        (0, 64),
    ),
    "mamba2-130m": (
        {**files.MAMBA_2, "hidden_size": 768, "num_heads": 24, "n_groups": 1}
        | {"num_hidden_layers": 24, "tie_word_embeddings": True, "vocab_size": 50288},
        files.SMALL_MAMBA_2,
        (0, 24),
    ),
    "mamba-codestral-7b": (
        {**files.MAMBA_2, "hidden_size": 4096, "num_heads": 128, "n_groups": 8}
        | {"num_hidden_layers": 64, "tie_word_embeddings": False, "vocab_size": 32768},
        {**files.SMALL_MAMBA_2, "head_dim": 16, "num_heads": 16},
        (0, 64),
    ),
    "nemotron-h-8b": (
        {**files.NEMOTRON, "attention_head_dim": 128, "hidden_size": 4096}
        | {"hybrid_override_pattern": f"M-M-M-M{'*-M-M-M-M-M' * 4}-", "intermediate_size": 21504}
        | {"mamba_num_heads": 128, "max_position_embeddings": 8192, "num_key_value_heads": 8},
        {**files.SMALL_NEMOTRON, "hybrid_override_pattern": "M-M*-M"},
        (4, 24),
    ),
    "nemotron-3-nano-30b": (
        {**files.NEMOTRON, "hidden_size": 2688, "intermediate_size": 1856, "norm_eps": 1e-5}
        | {"hybrid_override_pattern": f"MEMEM{'*EMEMEM' * 5}EM*EMEMEMEME"}
        | {"mamba_num_heads": 64, "max_position_embeddings": 262144, "num_key_value_heads": 2}
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1}
        | {"moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712}
        | {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
        | {"mamba_ssm_cache_dtype": "float32"},
        {**files.SMALL_NEMOTRON, "hybrid_override_pattern": "MEM*EM", "n_routed_experts": 16}
        | {"moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40},
        (6, 23),
    ),
    "falcon-h1-0.5b": (
        {**files.FALCON_H1, "attention_out_multiplier": 0.9375, "head_dim": 64}
        | {"embedding_multiplier": 5.656854249492381, "hidden_size": 1024}
        | {"intermediate_size": 2048, "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625}
        | {"mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_n_groups": 1}
        | {"mamba_n_heads": 24, "mamba_rms_norm": False, "max_position_embeddings": 16384}
        | {"mlp_multipliers": [0.8838834764831844, 0.5859375], "num_attention_heads": 8}
        | {"num_hidden_layers": 36, "num_key_value_heads": 2, "ssm_in_multiplier": 1.25}
        | {"ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.35355339]}
        | {"ssm_out_multiplier": 0.23570226039551587, "vocab_size": 32784},
        {**files.SMALL_FALCON, "mamba_d_ssm": 96, "mamba_n_heads": 6},
        (36, 36),
    ),
    "falcon-h1-34b": (
        {**files.FALCON_H1, "attention_out_multiplier": 0.0375, "head_dim": 128}
        | {"embedding_multiplier": 5.656854249492381, "hidden_size": 5120}
        | {"intermediate_size": 21504, "key_multiplier": 0.011048543456039804}
        | {"lm_head_multiplier": 0.0078125, "mamba_d_head": 128, "mamba_d_ssm": 4096}
        | {"mamba_d_state": 256, "mamba_n_groups": 2, "mamba_n_heads": 32, "mamba_rms_norm": True}
        | {"max_position_embeddings": 262144, "mlp_multipliers": [0.3535533905932738, 0.0125]}
        | {"num_attention_heads": 20, "num_hidden_layers": 72, "num_key_value_heads": 4}
        | {"ssm_in_multiplier": 0.25, "ssm_multipliers": [0.3535, 0.125, 0.1768, 0.5, 0.3535]}
        | {"ssm_out_multiplier": 0.0883883476483184, "vocab_size": 261120},
        {**files.SMALL_FALCON, "mamba_d_ssm": 96, "mamba_n_heads": 6},
        (72, 72),
    ),
    "zamba2-1.2b": (
        {**files.ZAMBA2, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 38}
        | {"layers_block_type": files.layers_of(f"{'MMMMMH' * 6}MM"), "attention_head_dim": 128}
        | {"attention_hidden_size": 4096, "mamba_headdim": 64, "mamba_ngroups": 1}
        | {"n_mamba_heads": 64, "num_attention_heads": 32, "num_key_value_heads": 32}
        | {"num_mem_blocks": 1, "use_mem_rope": True, "use_shared_attention_adapter": True},
        {**files.SMALL_ZAMBA, "layers_block_type": files.layers_of("MHMHMM")},
        (6, 38),
    ),
    "zamba2-7b": (
        {**files.ZAMBA2, "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 81}
        | {"layers_block_type": files.layers_of(f"MMMMMMH{'MMMMH' * 12}MMMMMMMMMMMMMM")}
        | {"attention_head_dim": 224, "attention_hidden_size": 7168, "mamba_headdim": 64}
        | {"mamba_ngroups": 2, "n_mamba_heads": 112, "num_attention_heads": 32}
        | {"num_key_value_heads": 32, "num_mem_blocks": 2, "use_mem_rope": True}
        | {"use_shared_attention_adapter": False},
        {**files.SMALL_ZAMBA, "layers_block_type": files.layers_of("MHHMHM")},
        (13, 81),
    ),
    **published_deltas.PUBLISHED,
    **published_kimi.PUBLISHED,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_planned_with(name):
    file, _, expected = PUBLISHED[name]
    specs = cache_specs(file)
    with_tokens = sum(spec.has_tokens for spec in specs.values())
    assert (with_tokens, len(specs) - with_tokens) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_runs_with_smaller_widths(name, tmp_path):
    file, smaller, _ = PUBLISHED[name]
    expect_a_model_of({**file, **smaller}, tmp_path)
