"""transformers' LFM2 is the oracle: equal logits and tokens from one checkpoint."""

from typing import ClassVar

from tests.models.family_laws import FamilyLaws

ROPE = {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}


class TestLfm2(FamilyLaws):
    family = "lfm2"
    cases: ClassVar = [
        {"conv_bias": True, "tie_word_embeddings": False},
        {**ROPE, "num_key_value_heads": 4, "block_auto_adjust_ff_dim": False},
        {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 20},
        {"conv_L_cache": 5, "full_attn_idxs": None, "layer_types": ["conv", "full_attention"] * 2},
        {"full_attn_idxs": [3], "norm_eps": 0.01, "head_dim": 24},
        {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "conv_L_cache": 2},
    ]


class TestLfm2Moe(FamilyLaws):
    family = "lfm2_moe"
    cases: ClassVar = [
        {"use_expert_bias": False, "conv_bias": True},
        {"norm_topk_prob": False, "routed_scaling_factor": 2.5, "num_dense_layers": 0},
        {**ROPE, "num_dense_layers": 2, "tie_word_embeddings": False},
        {"num_experts": 8, "num_experts_per_tok": 4, "conv_L_cache": 4},
        {"layer_types": ["full_attention", "conv", "conv", "conv"], "head_dim": 24},
        {"num_experts_per_tok": 1, "num_key_value_heads": 1, "norm_eps": 0.01},
    ]
