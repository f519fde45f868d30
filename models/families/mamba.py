"""Models of Mamba alone: Mamba, Falcon-Mamba and Mamba-2."""

from __future__ import annotations

from typing import Any

from blockstride.layouts.accounting import MAX_TOKENS
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import anything, constant, count, number, optional, switch
from blockstride.models.families.mamba2_hybrid import RunsMamba2
from blockstride.models.families.roles import HasMamba
from blockstride.models.modules import Mamba1Mixer, Mixer


class OnlyMamba(HasMamba, ModelFamily):
    """A mixer in every layer, and nothing else. States don't grow, so neither does any length end.

    Attributes:
        residual_in_fp32: Whether the residual stream is float32, whatever weights are.
    """

    prefix = "backbone."
    modules = {"mamba1": "mixer", "mamba2": "mixer"}
    # older files have the second name
    embedding = ("embeddings", "embedding")
    input_norm = "norm"
    final_norm = "norm_f"
    d_conv = count(4, "conv_kernel")
    expand = anything(2)
    intermediate_size = constant(0)
    max_position_embeddings = constant(MAX_TOKENS)
    rms_norm_eps = number(1e-5, "layer_norm_epsilon")
    residual_in_fp32 = switch(True)

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["mamba"] * self.num_hidden_layers


class Mamba(OnlyMamba):
    """Mamba (Gu and Dao 2023).

    Attributes:
        time_step_rank: Rank of the step-size projection; hidden_size / 16, rounded up, when None.
        use_bias: Whether the projections in and out of a mixer have a bias,
        use_conv_bias: and whether its convolution does.
    """

    layers = {"mamba": ("mamba1",)}
    vocab_size = count(50280)
    hidden_size = count(768)
    tie_word_embeddings = switch(True)
    # where a file says it, as Falcon-Mamba's do, it need not be what "expand" makes of the width
    d_inner = optional(None, "intermediate_size")
    d_state = count(16, "state_size")
    time_step_rank = optional()
    use_bias = switch(False)
    use_conv_bias = switch(True)

    def mamba1_mixer(self, types: CacheTypes, **how: Any) -> Mixer:
        """Mamba-1 of these sizes; its norms are as `Mamba1Mixer` has them by keyword."""
        return Mamba1Mixer(
            self.hidden_size,
            self.channels,
            self.d_state,
            self.conv_width,
            types,
            dt_rank=self.time_step_rank or -(-self.hidden_size // 16),
            has_conv_bias=self.use_conv_bias,
            has_proj_bias=self.use_bias,
            **how,
        )

    def mamba1(self, types: CacheTypes) -> Mixer:
        """Mamba-1."""
        return self.mamba1_mixer(types)


class FalconMamba(Mamba):
    """Falcon-Mamba (TII 2024).

    Attributes:
        mixer_rms_eps: Added to the mean square in the norms of dt, B and C.
    """

    mixer_rms_eps = number(1e-6)

    def mamba1(self, types: CacheTypes) -> Mixer:
        """Mamba-1 with norms of dt, B and C that have no gains."""
        return self.mamba1_mixer(types, eps=self.mixer_rms_eps, has_gains=False)


class Mamba2(OnlyMamba, RunsMamba2):
    """Mamba-2 (Dao and Gu 2024)."""

    layers = {"mamba": ("mamba2",)}
    vocab_size = count(32768)
    num_hidden_layers = count(64)
    d_state = count(128, "state_size")
    ssm_heads = count(128, "num_heads")
    ssm_head_dim = optional(64, "head_dim")
    groups = count(8, "n_groups")
    mamba_conv_bias = switch(True, "use_conv_bias")
    mamba_proj_bias = switch(False, "use_bias")
