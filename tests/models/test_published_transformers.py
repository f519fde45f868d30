"""Published files of families with attention alone: at full size planned, with less width run."""

import pytest

from blockstride.models import cache_specs
from tests.models import published_transformers as files
from tests.models.family_laws import expect_a_model_of

SMALL, HEADS = files.SMALL, {**files.SMALL, "head_dim": 24}
# name -> what is published, what is smaller where it runs, layers and windows, bytes of a token
PUBLISHED = {
    "llama-3.1-8b": (
        {**files.LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}
        | {"max_position_embeddings": 131072, "rope_scaling": {**files.LLAMA3_ROPE, "factor": 8.0}},
        SMALL,
        (32, 0, 131072),
    ),
    "llama-3.2-1b": (
        {**files.LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}
        | {"max_position_embeddings": 131072, "head_dim": 64}
        | {"rope_scaling": {**files.LLAMA3_ROPE, "factor": 32.0}},
        HEADS,
        (16, 0, 32768),
    ),
    "mistral-7b": (
        {**files.COMMON, "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336}
        | {"max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32}
        | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
        | {"sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
        | {"vocab_size": 32000},
        {**SMALL, "sliding_window": 16},
        (32, 32, 131072),
    ),
    "mistral-nemo-12b": (
        {**files.COMMON, "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336}
        | {"max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40}
        | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0}
        | {"head_dim": 128, "sliding_window": None, "torch_dtype": "bfloat16"}
        | {"vocab_size": 131072},
        HEADS,
        (40, 0, 163840),
    ),
    "mixtral-8x7b": (
        {**files.COMMON, "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336}
        | {"max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32}
        | {"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8}
        | {"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02}
        | {"sliding_window": None, "torch_dtype": "bfloat16", "vocab_size": 32000},
        SMALL,
        (32, 0, 131072),
    ),
    "mixtral-8x22b": (
        {**files.COMMON, "model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384}
        | {"max_position_embeddings": 65536, "num_attention_heads": 48, "num_hidden_layers": 56}
        | {"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8}
        | {"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_jitter_noise": 0.0}
        | {"sliding_window": None, "torch_dtype": "bfloat16", "vocab_size": 32000},
        SMALL,
        (56, 0, 229376),
    ),
    "qwen2.5-0.5b": (
        {**files.QWEN, "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864}
        | {"max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14}
        | {"num_hidden_layers": 24, "num_key_value_heads": 2, "rope_theta": 1000000.0}
        | {"sliding_window": 32768, "tie_word_embeddings": True},
        SMALL,
        (24, 0, 12288),
    ),
    "qwen2-7b": (
        {**files.QWEN, "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944}
        | {"max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 28}
        | {"num_hidden_layers": 28, "num_key_value_heads": 4, "rope_theta": 1000000.0}
        | {"sliding_window": 131072, "tie_word_embeddings": False, "vocab_size": 152064},
        SMALL,
        (28, 0, 57344),
    ),
    "qwen1.5-moe-a2.7b": (
        {**files.QWEN, "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632}
        | {"decoder_sparse_step": 1, "max_position_embeddings": 8192, "max_window_layers": 21}
        | {"moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16}
        | {"num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24}
        | {"num_key_value_heads": 16, "rope_theta": 1000000.0, "sliding_window": 32768}
        | {"shared_expert_intermediate_size": 5632, "tie_word_embeddings": False},
        {**SMALL, **files.SMALL_EXPERTS, "shared_expert_intermediate_size": 40},
        (24, 0, 196608),
    ),
    "qwen2-57b-a14b": (
        {**files.QWEN, "model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944}
        | {"decoder_sparse_step": 1, "max_position_embeddings": 32768, "max_window_layers": 28}
        | {"moe_intermediate_size": 2560, "norm_topk_prob": False, "num_attention_heads": 28}
        | {"num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 28}
        | {"num_key_value_heads": 4, "rope_theta": 1000000.0, "sliding_window": 65536}
        | {"shared_expert_intermediate_size": 20480, "tie_word_embeddings": False},
        {**SMALL, **files.SMALL_EXPERTS, "shared_expert_intermediate_size": 40},
        (28, 0, 57344),
    ),
    "qwen3-0.6b": (
        {**files.QWEN, "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072}
        | {"attention_bias": False, "head_dim": 128, "max_position_embeddings": 40960}
        | {"max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28}
        | {"num_key_value_heads": 8, "rope_scaling": None, "rope_theta": 1000000}
        | {"sliding_window": None, "tie_word_embeddings": True},
        HEADS,
        (28, 0, 114688),
    ),
    "qwen3-32b": (
        {**files.QWEN, "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600}
        | {"attention_bias": False, "head_dim": 128, "max_position_embeddings": 40960}
        | {"max_window_layers": 64, "num_attention_heads": 64, "num_hidden_layers": 64}
        | {"num_key_value_heads": 8, "rope_scaling": None, "rope_theta": 1000000}
        | {"sliding_window": None, "tie_word_embeddings": False},
        HEADS,
        (64, 0, 262144),
    ),
    "qwen3-30b-a3b": (
        {**files.QWEN, "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144}
        | {"attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128}
        | {"max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": []}
        | {"moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32}
        | {"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48}
        | {"num_key_value_heads": 4, "rope_scaling": None, "rope_theta": 1000000.0}
        | {"sliding_window": None, "tie_word_embeddings": False},
        {**HEADS, **files.SMALL_EXPERTS},
        (48, 0, 98304),
    ),
    "qwen3-235b-a22b": (
        {**files.QWEN, "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288}
        | {"attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128}
        | {"max_position_embeddings": 40960, "max_window_layers": 94, "mlp_only_layers": []}
        | {"moe_intermediate_size": 1536, "norm_topk_prob": True, "num_attention_heads": 64}
        | {"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94}
        | {"num_key_value_heads": 4, "rope_scaling": None, "rope_theta": 1000000.0}
        | {"sliding_window": None, "tie_word_embeddings": False},
        {**HEADS, **files.SMALL_EXPERTS},
        (94, 0, 192512),
    ),
    "gemma-2-2b": (
        {**files.GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
        | {"num_attention_heads": 8, "num_key_value_heads": 4},
        {**HEADS, "sliding_window": 16},
        (26, 13, 212992),
    ),
    "gemma-2-27b": (
        {**files.GEMMA, "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46}
        | {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}
        | {"query_pre_attn_scalar": 144},
        {**HEADS, "sliding_window": 16},
        (46, 23, 753664),
    ),
    "gpt-oss-20b": (
        {**files.GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32}
        | {"layer_types": files.alternating(24)},
        {**HEADS, "layer_types": files.alternating(4), "num_local_experts": 8}
        | {"sliding_window": 16},
        (24, 12, 49152),
    ),
    "gpt-oss-120b": (
        {**files.GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128}
        | {"layer_types": files.alternating(36)},
        {**HEADS, "layer_types": files.alternating(4), "num_local_experts": 8}
        | {"sliding_window": 16},
        (36, 18, 73728),
    ),
    "granite-3.1-2b": (
        {**files.GRANITE, "attention_multiplier": 0.015625, "hidden_size": 2048}
        | {"intermediate_size": 8192, "logits_scaling": 8.0, "num_attention_heads": 32}
        | {"num_hidden_layers": 40, "num_key_value_heads": 8, "rope_theta": 5000000.0}
        | {"vocab_size": 49155},
        SMALL,
        (40, 0, 81920),
    ),
    "granite-3.1-8b": (
        {**files.GRANITE, "attention_multiplier": 0.0078125, "hidden_size": 4096}
        | {"intermediate_size": 12800, "logits_scaling": 16.0, "num_attention_heads": 32}
        | {"num_hidden_layers": 40, "num_key_value_heads": 8, "rope_theta": 10000000.0}
        | {"vocab_size": 49155},
        SMALL,
        (40, 0, 163840),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_is_planned_with(name):
    file, _, expected = PUBLISHED[name]
    specs = cache_specs(file).values()
    windows = sum(getattr(spec, "window", None) is not None for spec in specs)
    assert (len(specs), windows, sum(spec.token_bytes for spec in specs)) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_runs_with_smaller_widths(name, tmp_path):
    file, smaller, _ = PUBLISHED[name]
    expect_a_model_of({**file, **smaller}, tmp_path)
