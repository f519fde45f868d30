"""After published config.json files of families with Mamba mixers; and smaller widths for them."""

from math import inf
from typing import Any

STEPS = {"time_step_floor": 1e-4, "time_step_max": 0.1, "time_step_min": 1e-3}
MAMBA: dict[str, Any] = {
    **STEPS,
    "bos_token_id": 0,
    "conv_kernel": 4,
    "eos_token_id": 0,
    "expand": 2,
    "hidden_act": "silu",
    "initializer_range": 0.1,
    "layer_norm_epsilon": 1e-5,
    "pad_token_id": 0,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "time_step_init_scheme": "random",
    "time_step_scale": 1.0,
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
}
MAMBA_1 = {**MAMBA, "model_type": "mamba", "state_size": 16, "vocab_size": 50280}
OLDER = {"fused_add_norm": True, "rms_norm": True, "ssm_cfg": {}, "torch_dtype": "float32"}
FALCON_MAMBA = {
    **MAMBA,
    "model_type": "falcon_mamba",
    "hidden_size": 4096,
    # twice the width, whatever this says
    "expand": 16,
    "intermediate_size": 8192,
    "eos_token_id": 11,
    "num_hidden_layers": 64,
    "state_size": 16,
    "time_step_rank": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 65024,
}
MAMBA_2 = {
    **MAMBA,
    "model_type": "mamba2",
    "chunk_size": 256,
    "norm_before_gate": True,
    "rms_norm": True,
    "state_size": 128,
    "time_step_limit": [0.0, inf],
    "head_dim": 64,
}
NEMOTRON = {
    **STEPS,
    "model_type": "nemotron_h",
    "attention_bias": False,
    "bos_token_id": 1,
    "chunk_size": 128,
    "conv_kernel": 4,
    "eos_token_id": 2,
    "expand": 2,
    "head_dim": 128,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "n_groups": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 52,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "sliding_window": None,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, inf],
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 131072,
}
FALCON_H1 = {
    **STEPS,
    "model_type": "falcon_h1",
    "attention_bias": False,
    "attention_in_multiplier": 1.0,
    "attn_layer_indices": None,
    "bos_token_id": 1,
    "eos_token_id": 11,
    "hidden_act": "silu",
    "mamba_chunk_size": 128,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_norm_before_gate": False,
    "mamba_proj_bias": False,
    "mamba_use_mlp": True,
    "mlp_bias": False,
    "mlp_expansion_factor": 8,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "projectors_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 1e11,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
ZAMBA2 = {
    **STEPS,
    "model_type": "zamba2",
    "add_bias_linear": False,
    "attention_dropout": 0.0,
    "adapter_rank": 128,
    "bos_token_id": 1,
    "chunk_size": 256,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "mamba_d_conv": 4,
    "mamba_d_state": 64,
    "mamba_expand": 2,
    "max_position_embeddings": 4096,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "torch_dtype": "bfloat16",
    "use_conv_bias": True,
    "use_long_context": False,
    "use_mem_eff_path": True,
    "vocab_size": 32000,
}


def layers_of(letters: str) -> list[str]:
    """The layers of a Zamba2, H for hybrid."""
    return ["hybrid" if letter == "H" else "mamba" for letter in letters]


SMALL_MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 259, "time_step_rank": 4}
SMALL_MAMBA_2 = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 259, "num_heads": 4}
SMALL_NEMOTRON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "num_attention_heads": 8,
    "head_dim": 16,
    "vocab_size": 259,
}
SMALL_FALCON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "mamba_d_head": 16,
    "vocab_size": 259,
}
SMALL_ZAMBA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6} | {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "attention_hidden_size": 128,
    "attention_head_dim": 16,
    "n_mamba_heads": 8,
    "mamba_headdim": 16,
    "vocab_size": 259,
}
