"""Files of families with gated delta nets or short convolutions, with a value for every key."""

ATTENTION = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
DELTA = {
    **ATTENTION,
    "intermediate_size": 48,
    "rms_norm_eps": 2e-5,
    "tie_word_embeddings": True,
    "attention_bias": True,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 36,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 48,
}
QWEN = {**DELTA, "full_attention_interval": 3, "partial_rotary_factor": 0.75}
EXPERTS = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
QWEN_MOE = {**QWEN, **EXPERTS, "shared_expert_intermediate_size": 56}
CONV = {
    **ATTENTION,
    "intermediate_size": 500,
    "norm_eps": 2e-5,
    "tie_word_embeddings": False,
    "conv_L_cache": 4,
    "conv_bias": True,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
FILES = {
    "qwen3_5_text": QWEN,
    "qwen3_5_moe_text": {k: v for k, v in QWEN_MOE.items() if k != "intermediate_size"},
    "qwen3_next": {
        **QWEN_MOE,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
    },
    "olmo_hybrid": {
        **DELTA,
        "hidden_size": 120,
        "num_attention_heads": 20,
        "num_key_value_heads": 10,
        "linear_num_key_heads": 10,
        "linear_num_value_heads": 40,
        "linear_allow_neg_eigval": False,
    },
    "lfm2": {
        **CONV,
        "full_attn_idxs": [2, 3],
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.5,
        "block_multiple_of": 7,
    },
    "lfm2_moe": {
        **CONV,
        **EXPERTS,
        "num_dense_layers": 1,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
    },
}
