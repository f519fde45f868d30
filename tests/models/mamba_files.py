"""Files of families with Mamba in every layer, each with a value of its own for every key."""

PURE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "state_size": 24,
    "conv_kernel": 3,
    "layer_norm_epsilon": 2e-5,
    "residual_in_fp32": False,
    "use_bias": True,
    "use_conv_bias": False,
}
MAMBA = {
    **PURE,
    "expand": 3,
    "intermediate_size": 80,
    "time_step_rank": 9,
    "tie_word_embeddings": False,
}
MAMBA2 = {
    **PURE,
    "expand": 4,
    "num_heads": 16,
    "head_dim": 12,
    "n_groups": 2,
    "time_step_limit": [0.1, 0.7],
    "tie_word_embeddings": True,
}
FALCON_H1 = {
    "mamba_d_ssm": 192,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
    "projectors_bias": True,
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 0.6,
    "attention_out_multiplier": 0.7,
    "key_multiplier": 0.8,
    "ssm_in_multiplier": 0.9,
    "ssm_out_multiplier": 1.1,
    "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0],
    "mlp_multipliers": [0.4, 0.3],
}
FILES = {
    "falcon_h1": FALCON_H1,
    "falcon_mamba": {**MAMBA, "mixer_rms_eps": 3e-5},
    "mamba": MAMBA,
    "mamba2": MAMBA2,
}
