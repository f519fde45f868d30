"""LFM2: gated short convolutions, and attention in some layers."""

from __future__ import annotations

from typing import Any

from blockstride.layouts import short_conv
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, count, optional
from blockstride.models.families.roles import ATTENTION, HasAttention
from blockstride.models.modules import Mixer, PlannedMixer


class Lfm2(HasAttention):
    """LFM2 (Liquid AI 2025).

    Attributes:
        listed_types: What each layer is, where a file lists them.
        full_attn_idxs: The layers with attention, in older files.
        conv_width: Taps of a convolution, the current one included.
    """

    layers = {**ATTENTION, "conv": ("conv",)}
    listed_types = anything(None, "layer_types")
    full_attn_idxs = anything()
    hidden_size = count(2560)
    num_key_value_heads = optional(8)
    conv_width = count(3, "conv_L_cache")

    def layer_types(self) -> list[Any]:
        """As listed, or attention in the layers that are named."""
        if self.listed_types is None:
            return self.indexed("full_attn_idxs", "conv")
        return self.listed("listed_types")

    def conv(self, types: CacheTypes) -> Mixer:
        """A gated short convolution over the hidden size."""
        width = self.conv_width
        self.expect(width >= 2, "conv_width", "at least 2")
        how = {"conv_dtype": types.conv, "conv_order": types.conv_order}
        return PlannedMixer(short_conv(self.hidden_size, width, **how))


class Lfm2Moe(Lfm2):
    """LFM2 with experts."""

    hidden_size = count(2048)
