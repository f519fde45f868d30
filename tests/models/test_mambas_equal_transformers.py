"""Models without attention: transformers' Mamba, Falcon-Mamba and Mamba-2 are the oracle."""

from typing import ClassVar

from tests.models.family_laws import FamilyLaws

MAMBA1_CASES = [
    {"use_bias": True, "use_conv_bias": False},
    {"tie_word_embeddings": False, "time_step_rank": 7},
    {"intermediate_size": 128, "conv_kernel": 2},
    {"state_size": 16, "layer_norm_epsilon": 1e-3},
    {"hidden_size": 48, "num_hidden_layers": 1},
]


class TestMamba(FamilyLaws):
    family = "mamba"
    cases: ClassVar = MAMBA1_CASES


class TestFalconMamba(FamilyLaws):
    family = "falcon_mamba"
    cases: ClassVar = [*MAMBA1_CASES, {"mixer_rms_eps": 0.1}]


class TestMamba2(FamilyLaws):
    family = "mamba2"
    cases: ClassVar = [
        {"use_bias": True, "use_conv_bias": False},
        {"n_groups": 1, "tie_word_embeddings": True},
        {"n_groups": 8, "conv_kernel": 3, "layer_norm_epsilon": 1e-3},
        {"time_step_limit": (0.5, 0.8)},
        {"expand": 3, "head_dim": 24, "state_size": 5},
        {"hidden_size": 96, "num_heads": 12, "num_hidden_layers": 2},
    ]
