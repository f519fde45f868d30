"""What hybrids of attention and Mamba-2 share that run: switches, steps and layers."""

from __future__ import annotations

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import limits, switch
from blockstride.models.families.roles import ATTENTION, MAMBA2, HasMamba2
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import Mixer


class Mamba2Hybrid(HasRope, HasMamba2):
    """Attention in some layers, Mamba-2 in the others.

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias.
        mamba_conv_bias: Whether the convolution of a Mamba mixer has one,
        mamba_proj_bias: and whether the projections in and out of it do.
        time_step_limit: Lowest and highest step of the recurrence.
    """

    layers = {**ATTENTION, **MAMBA2}
    attention_bias = switch(False)
    mamba_conv_bias = switch(True)
    mamba_proj_bias = switch(False)
    time_step_limit = limits()

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention over all tokens, with the biases that the file says."""
        return self.attention_mixer(types, has_bias=self.attention_bias)

    def mamba2(self, types: CacheTypes) -> Mixer:
        """Mamba-2, with the biases and steps that the file says."""
        return self.mamba2_mixer(
            types,
            eps=self.rms_norm_eps,
            has_conv_bias=self.mamba_conv_bias,
            has_proj_bias=self.mamba_proj_bias,
            step_limit=self.time_step_limit,
        )
