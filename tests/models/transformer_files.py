"""Files of families with attention alone, each with a value of its own for every key."""

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "rms_norm_eps": 2e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
BIASES = {"attention_bias": True, "mlp_bias": True}
TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 24}
WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3}
QWEN_EXPERTS = {
    "num_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
}
FILES = {
    "llama": {**SIZES, **BIASES},
    "granite": {
        **SIZES,
        **BIASES,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 2,
        "residual_multiplier": 0.4,
        "logits_scaling": 5.0,
    },
    "mistral": {**SIZES, "sliding_window": 24},
    "mixtral": {**SIZES, **EXPERTS, "sliding_window": 24},
    # as many heads as there are KV heads in a file that doesn't say
    "qwen2": {**SIZES, **WINDOWS, "num_attention_heads": 32},
    "qwen2_moe": {
        **SIZES,
        **WINDOWS,
        **QWEN_EXPERTS,
        "qkv_bias": False,
        "shared_expert_intermediate_size": 80,
    },
    "qwen3": {**SIZES, **WINDOWS, "num_attention_heads": 32, "attention_bias": True},
    "qwen3_moe": {**SIZES, **WINDOWS, **QWEN_EXPERTS, "attention_bias": True},
    "gemma2": {
        **SIZES,
        **TYPES,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": True,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 6.0,
        "use_bidirectional_attention": False,
    },
    "gpt_oss": {
        **SIZES,
        **TYPES,
        **EXPERTS,
        "attention_bias": False,
        "swiglu_alpha": 1.5,
        "swiglu_limit": 5.0,
    },
}
LISTED = {"gemma2", "gpt_oss"}
"""Families with windows, whose files here list the types of layers."""
