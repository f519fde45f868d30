"""After published config.json files of gated delta nets and short convolutions, and smaller widths.

Name -> what is published, what is smaller where it runs, caches of tokens, and of states.
"""

from typing import Any

GENERAL = {"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.1}
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
SMALL_DELTA = {
    "head_dim": 16,
    "hidden_size": 48,
    "intermediate_size": 40,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "num_hidden_layers": 4,
    "vocab_size": 300,
}
SMALL_EXPERTS = {
    "moe_intermediate_size": 16,
    "num_experts": 16,
    "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 24,
}


def hybrid(count: int) -> list[str]:
    """Attention in every fourth of some layers."""
    return ["linear_attention" if i % 4 < 3 else "full_attention" for i in range(count)]


QWEN3_NEXT: dict[str, Any] = {
    **GENERAL,
    **DELTA,
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 151936,
}
QWEN35: dict[str, Any] = {
    **GENERAL,
    **DELTA,
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "attention_bias": False,
    "attn_output_gate": True,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "pad_token_id": None,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "use_cache": True,
    "vocab_size": 248320,
}
OLMO: dict[str, Any] = {
    **GENERAL,
    "model_type": "olmo_hybrid",
    "architectures": ["OlmoHybridForCausalLM"],
    "attention_bias": False,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "eos_token_id": 100257,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "layer_types": hybrid(32),
    "linear_allow_neg_eigval": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 96,
    "linear_num_key_heads": 30,
    "linear_num_value_heads": 30,
    "linear_value_head_dim": 192,
    "max_position_embeddings": 65536,
    "num_attention_heads": 30,
    "num_hidden_layers": 32,
    "num_key_value_heads": 30,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 100352,
}
SMALL_OLMO = {
    "hidden_size": 60,
    "intermediate_size": 40,
    "layer_types": hybrid(4),
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 12,
    "num_hidden_layers": 4,
    "eos_token_id": 7,
    "pad_token_id": 0,
    "vocab_size": 300,
}
LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-5,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_use_xavier_init": True,
    "eos_token_id": 7,
    "initializer_range": 0.1,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_pos_enc": True,
    "vocab_size": 65536,
}
CONVOLUTIONS = {
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "num_hidden_layers": 16,
}
LFM2_MOE: dict[str, Any] = {
    "model_type": "lfm2_moe",
    "architectures": ["Lfm2MoeForCausalLM"],
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 7,
    "hidden_size": 2048,
    "initializer_range": 0.1,
    "intermediate_size": 7168,
    "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-5,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "use_cache": True,
    "use_expert_bias": True,
    "vocab_size": 65536,
}
SMALL_CONV = {
    "block_ff_dim": 600,
    "full_attn_idxs": [2],
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 300,
}
SMALL_MOE = {
    **SMALL_CONV,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "moe_intermediate_size": 16,
}
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "qwen3-next-80b": (QWEN3_NEXT, {**SMALL_DELTA, **SMALL_EXPERTS}, (12, 36)),
    "qwen3-coder-next": (
        {**QWEN3_NEXT, "layer_types": hybrid(48), "rope_theta": 5000000},
        {**SMALL_DELTA, **SMALL_EXPERTS, "layer_types": hybrid(4)},
        (12, 36),
    ),
    "qwen3.5-0.8b": (
        {**QWEN35, "hidden_size": 1024, "intermediate_size": 3584, "layer_types": hybrid(24)}
        | {"linear_num_value_heads": 16, "num_attention_heads": 8, "num_hidden_layers": 24}
        | {"num_key_value_heads": 2, "tie_word_embeddings": True},
        {**SMALL_DELTA, "layer_types": hybrid(4), "eos_token_id": 7},
        (6, 18),
    ),
    "qwen3.5-4b": (
        {**QWEN35, "hidden_size": 2560, "intermediate_size": 9216, "layer_types": hybrid(32)}
        | {"num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 4}
        | {"tie_word_embeddings": True},
        {**SMALL_DELTA, "layer_types": hybrid(4), "eos_token_id": 7},
        (8, 24),
    ),
    "qwen3.5-35b-a3b": (
        {**QWEN35, "model_type": "qwen3_5_moe_text", "hidden_size": 2048}
        | {"layer_types": hybrid(40), "moe_intermediate_size": 512, "num_attention_heads": 16}
        | {"num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40}
        | {"num_key_value_heads": 2, "shared_expert_intermediate_size": 512},
        {**SMALL_DELTA, **SMALL_EXPERTS, "layer_types": hybrid(4), "eos_token_id": 7},
        (10, 30),
    ),
    "olmo-hybrid-7b": (OLMO, SMALL_OLMO, (8, 24)),
    # no published size has positions; its files may
    "olmo-hybrid-with-positions": (
        {**OLMO, "rope_parameters": {"rope_theta": 500000, "rope_type": "default"}},
        SMALL_OLMO,
        (8, 24),
    ),
    "lfm2-350m": (
        {**LFM2, **CONVOLUTIONS, "block_dim": 1024, "block_ff_dim": 6656, "hidden_size": 1024}
        | {"conv_dim": 1024, "num_attention_heads": 16, "num_heads": 16},
        SMALL_CONV,
        (6, 10),
    ),
    "lfm2-2.6b": (
        {**LFM2, "block_auto_adjust_ff_dim": False, "block_dim": 2048, "block_ff_dim": 10752}
        | {"conv_dim": 2048, "hidden_size": 2048, "intermediate_size": 10752}
        | {
            "layer_types": [
                "full_attention" if i in (2, 5, 9, 13, 17, 21, 24, 27) else "conv"
                for i in range(30)
            ]
        }
        | {"num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 30},
        {**SMALL_CONV, "layer_types": SMALL_MOE["layer_types"]},
        (8, 22),
    ),
    "lfm2-8b-a1b": (LFM2_MOE, SMALL_MOE, (6, 18)),
    "lfm2-8b-a1b-saved": (
        {**LFM2_MOE, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}
        | {"tie_word_embeddings": True},
        SMALL_MOE,
        (6, 18),
    ),
}
