"""A small config of every family, as (class of transformers, arguments)."""

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 2}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
SHARED = {"shared_expert_intermediate_size": 16}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "q_lora_rank": 16,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
PURE = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}

# every family, by the class of its config
CONFIGS = {
    "bamba": ("BambaConfig", {**SIZES, **MAMBA2, "attn_layer_indices": [1]}),
    "deepseek_v2": ("DeepseekV2Config", {**SIZES, **LATENT}),
    "deepseek_v3": ("DeepseekV3Config", {**SIZES, **LATENT, "first_k_dense_replace": 1}),
    "falcon_h1": ("FalconH1Config", {**SIZES, **MAMBA2, "mamba_d_ssm": 96}),
    "falcon_mamba": ("FalconMambaConfig", {**PURE, "expand": 3}),
    "gemma2": ("Gemma2Config", {**SIZES, "head_dim": 24, "sliding_window": 8}),
    "gpt_oss": ("GptOssConfig", {**SIZES, **EXPERTS, "head_dim": 24, "sliding_window": 8}),
    "granite": ("GraniteConfig", SIZES),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            **SIZES,
            **MAMBA2,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 2,
            "shared_intermediate_size": 32,
        },
    ),
    "jamba": (
        "JambaConfig",
        {**SIZES, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_conv": 3},
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        {
            **SIZES,
            **{key: size for key, size in LATENT.items() if key != "n_routed_experts"},
            **EXPERTS,
            "num_hidden_layers": 5,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
        },
    ),
    "lfm2": ("Lfm2Config", {**SIZES, "full_attn_idxs": [1], "conv_L_cache": 4}),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        {**SIZES, **EXPERTS, "layer_types": ["conv", "full_attention", "conv"]},
    ),
    "llama": ("LlamaConfig", {**SIZES, "head_dim": 24}),
    "mamba": ("MambaConfig", PURE),
    "mamba2": ("Mamba2Config", {**PURE, "num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": 8}),
    "mixtral": ("MixtralConfig", {**SIZES, "num_local_experts": 2, "sliding_window": None}),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **{key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            "head_dim": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 2,
            "n_routed_experts": 2,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        {**SIZES, **{key: size for key, size in DELTA.items() if key != "head_dim"}},
    ),
    "qwen2": (
        "Qwen2Config",
        {**SIZES, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**SIZES, **EXPERTS, **SHARED},
    ),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 32, "use_sliding_window": False}),
    "qwen3_moe": ("Qwen3MoeConfig", {**SIZES, **EXPERTS, "head_dim": 8}),
    "qwen3_5_text": ("Qwen3_5TextConfig", {**SIZES, **DELTA}),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeTextConfig",
        {
            **SIZES,
            **DELTA,
            **EXPERTS,
            "num_hidden_layers": 4,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **SIZES,
            **DELTA,
            **EXPERTS,
            "num_hidden_layers": 4,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        {**SIZES, "lru_width": 96, "conv1d_width": 3, "attention_window_size": 8},
    ),
    "zamba2": (
        "Zamba2Config",
        {
            **SIZES,
            "layers_block_type": ["mamba", "hybrid", "mamba"],
            "mamba_d_state": 8,
            "n_mamba_heads": 8,
            "mamba_ngroups": 2,
        },
    ),
}
