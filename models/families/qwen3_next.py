"""Qwen3-Next and Qwen 3.5: gated delta nets, and attention in the last layer of each interval."""

from __future__ import annotations

from typing import Any

from blockstride.layouts import gated_delta_net
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, count, optional
from blockstride.models.families.roles import HasAttention
from blockstride.models.modules import Mixer, PlannedMixer


class Qwen3Next(HasAttention):
    """Qwen3-Next (Alibaba 2025).

    Attributes:
        listed_types: What each layer is, where a file lists them.
        full_attention_interval: One layer in so many has attention, where it doesn't.
    """

    layers = {"full_attention": ("attention",), "linear_attention": ("delta",)}
    listed_types = anything(None, "layer_types")
    full_attention_interval = count(4)
    num_hidden_layers = count(48)
    num_attention_heads = count(16)
    num_key_value_heads = optional(2)
    head_dim = optional(256)
    linear_conv_kernel_dim = count(4)
    linear_key_head_dim = count(128)
    linear_num_key_heads = count(16)
    linear_num_value_heads = count(32)
    linear_value_head_dim = count(128)

    def layer_types(self) -> list[Any]:
        """As listed, or by interval."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        interval, layers = self.full_attention_interval, range(self.num_hidden_layers)
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in layers]

    def delta(self, types: CacheTypes) -> Mixer:
        """Gated delta net."""
        key_heads, heads = self.linear_num_key_heads, self.linear_num_value_heads
        self.expect(heads % key_heads == 0, "linear_num_key_heads", f"a divisor of {heads}")
        width = self.linear_conv_kernel_dim
        self.expect(width >= 2, "linear_conv_kernel_dim", "at least 2")
        sizes = (key_heads, heads, self.linear_key_head_dim, self.linear_value_head_dim, width)
        return PlannedMixer(gated_delta_net(*sizes, **types.state))


class Qwen35(Qwen3Next):
    """The language part of Qwen 3.5 (Alibaba 2026)."""

    num_hidden_layers = count(32)
    num_key_value_heads = optional(4)


class Qwen35Moe(Qwen3Next):
    """The same with experts."""

    num_hidden_layers = count(40)
