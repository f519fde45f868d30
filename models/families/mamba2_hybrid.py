"""What families with Mamba-2 share that run: switches, steps and, of hybrids, layers."""

from __future__ import annotations

from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import limits, switch
from blockstride.models.families.roles import ATTENTION, MAMBA2, HasMamba2
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import Mamba2Mixer, Mixer


class RunsMamba2(HasMamba2, ModelFamily):
    """A family whose Mamba-2 runs.

    Attributes:
        mamba_conv_bias: Whether the convolution of a Mamba mixer has a bias,
        mamba_proj_bias: and whether the projections in and out of it do.
        time_step_limit: Lowest and highest step of the recurrence.
    """

    mamba_conv_bias = switch(True)
    mamba_proj_bias = switch(False)
    time_step_limit = limits()

    def mamba2_mixer(self, types: CacheTypes, **how: Any) -> Mamba2Mixer:
        """Mamba-2, with the biases and steps that the file says; the rest is as in `how`."""
        said = {
            "eps": self.rms_norm_eps,
            "has_conv_bias": self.mamba_conv_bias,
            "has_proj_bias": self.mamba_proj_bias,
            "step_limit": self.time_step_limit,
        }
        return super().mamba2_mixer(types, **{**said, **how})


class Mamba2Hybrid(HasRope, RunsMamba2):
    """Attention in some layers, Mamba-2 in the others.

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias.
    """

    layers = {**ATTENTION, **MAMBA2}
    attention_bias = switch(False)

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention over all tokens, with the biases that the file says."""
        return self.attention_mixer(types, has_bias=self.attention_bias)
