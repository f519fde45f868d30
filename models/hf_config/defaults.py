"""What keys of a config.json mean where a file leaves them out, as transformers has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HYBRID = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
}
_MAMBA = {
    "conv_kernel": 4,
    "expand": 2,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
}
_LFM2 = {
    "conv_L_cache": 3,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
_DENSE = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
_QWEN = {**_DENSE, "num_key_value_heads": 32, "use_sliding_window": False}
_WINDOW = {"max_window_layers": 28, "sliding_window": 4096}
_DELTA = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
}
_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_HYBRID, "num_key_value_heads": 8},
    "deepseek_v2": {**_LATENT, "num_hidden_layers": 32},
    "deepseek_v3": {**_LATENT, "num_hidden_layers": 61},
    "falcon_h1": {**_HYBRID, "num_key_value_heads": 8, "mamba_d_ssm": 1024},
    "falcon_mamba": _MAMBA,
    "granitemoehybrid": _HYBRID,
    "jamba": {
        **_HYBRID,
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "mamba_d_state": 16,
        "num_key_value_heads": 8,
    },
    "lfm2": {**_LFM2, "hidden_size": 2560},
    "lfm2_moe": {**_LFM2, "hidden_size": 2048},
    "llama": _DENSE,
    "mamba": _MAMBA,
    "mamba2": {
        **_MAMBA,
        "head_dim": 64,
        "hidden_size": 4096,
        "n_groups": 8,
        "num_heads": 128,
        "num_hidden_layers": 64,
        "state_size": 128,
    },
    "mistral": {**_DENSE, "num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {**_DENSE, "num_key_value_heads": 8},
    "nemotron_h": {
        "conv_kernel": 4,
        "head_dim": 128,
        "hybrid_override_pattern": "ME*-",
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "n_groups": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "ssm_state_size": 128,
    },
    "qwen2": {**_QWEN, **_WINDOW},
    "qwen2_moe": {
        **_QWEN,
        **_WINDOW,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
    },
    "qwen3": {**_QWEN, **_WINDOW, "head_dim": 128},
    "qwen3_moe": {
        **_QWEN,
        **_WINDOW,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
    },
    "qwen3_5_moe_text": {**_DELTA, "num_hidden_layers": 40},
    "qwen3_5_text": {**_DELTA, "num_hidden_layers": 32, "num_key_value_heads": 4},
    "qwen3_next": {**_DELTA, "num_hidden_layers": 48},
    "zamba2": {
        "hidden_size": 2560,
        "mamba_d_conv": 4,
        "mamba_d_state": 64,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "num_attention_heads": 32,
        "num_hidden_layers": 54,
    },
}
"""`model_type` -> key -> what its absence means. A key that is null is not absent."""
