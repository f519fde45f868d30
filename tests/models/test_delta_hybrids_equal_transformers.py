"""transformers' hybrids of attention and gated delta nets are the oracle."""

from typing import ClassVar

from tests.models.family_laws import FamilyLaws

SHARED_KEYS = {"linear_num_key_heads": 1, "num_key_value_heads": 1}
ROPE = {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}}
HYBRID = {"layer_types": ["full_attention", "linear_attention"] * 2}


class TestQwen35(FamilyLaws):
    family = "qwen3_5"
    cases: ClassVar = [
        {**SHARED_KEYS, "tie_word_embeddings": True},
        {**ROPE, "attention_bias": True},
        {**HYBRID, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 2},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_key_head_dim": 33},
        {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48, "head_dim": 20},
        {"rms_norm_eps": 0.01, "linear_num_value_heads": 6, "linear_value_head_dim": 7},
    ]


class TestQwen35Moe(FamilyLaws):
    family = "qwen3_5_moe"
    cases: ClassVar = [
        {**SHARED_KEYS, "num_experts": 8, "num_experts_per_tok": 8},
        {**ROPE, "attention_bias": True},
        {**HYBRID, "shared_expert_intermediate_size": 96},
        {"num_experts_per_tok": 1, "tie_word_embeddings": True},
        {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-5},
        {"num_experts": 5, "moe_intermediate_size": 16, "head_dim": 16},
    ]


class TestQwen3Next(FamilyLaws):
    family = "qwen3_next"
    cases: ClassVar = [
        {**SHARED_KEYS, "norm_topk_prob": False},
        {**ROPE, "attention_bias": True, "mlp_only_layers": [1, 3]},
        {**HYBRID, "decoder_sparse_step": 2},
        {"num_experts_per_tok": 1, "tie_word_embeddings": True, "linear_num_key_heads": 4},
        {"linear_num_value_heads": 6, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-5},
        {"num_experts": 5, "moe_intermediate_size": 16, "head_dim": 16},
    ]


class TestOlmoHybrid(FamilyLaws):
    family = "olmo_hybrid"
    cases: ClassVar = [
        {"rope_parameters": {"rope_theta": None, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}, "num_key_value_heads": 4},
        {"linear_allow_neg_eigval": False, "attention_bias": True},
        {**HYBRID, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 2},
        {"linear_num_key_heads": None, "linear_key_head_dim": None, "linear_value_head_dim": None},
        {"num_hidden_layers": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
        {"rms_norm_eps": 0.01, "linear_num_value_heads": 6, "linear_value_head_dim": 7},
    ]
