"""Qwen 3.5: gated delta nets, and attention in the last layer of each interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.delta import HasDelta
from blockstride.models.families.experts import HasSharedExpert
from blockstride.models.families.keys import (
    anything,
    constant,
    count,
    is_whole,
    optional,
    share,
    switch,
)
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import (
    DeltaNames,
    FeedForward,
    GatedMLP,
    HeadNorm,
    LayerWeights,
    Mixer,
)


class Qwen35(HasRope, HasDelta):
    """The language part of Qwen 3.5 (Alibaba 2026).

    Attributes:
        listed_types: What each layer is, where a file lists them.
        full_attention_interval: One layer in so many has attention, where it doesn't.
        attention_bias: Whether the projections in and out of attention have a bias.
        linear_num_key_heads: Heads of queries and keys of a gated delta net,
        linear_num_value_heads: and of values.
        linear_key_head_dim: Elements of a query or key there,
        linear_value_head_dim: and of a value.
    """

    layers = {"full_attention": ("attention",), "linear_attention": ("delta",)}
    norm_offset = 1.0
    names: ClassVar[DeltaNames] = DeltaNames()
    turning_share = share(0.25, "partial_rotary_factor")
    vocab_size = count(248320)
    intermediate_size = count(12288)
    max_position_embeddings = count(32768)
    num_attention_heads = count(16)
    num_key_value_heads = optional(4)
    head_dim = optional(256)
    attention_bias = switch(False)
    listed_types = anything(None, "layer_types")
    full_attention_interval = anything(4)
    linear_key_head_dim = count(128)
    linear_num_key_heads = count(16)
    linear_num_value_heads = count(32)
    linear_value_head_dim = count(128)

    def layer_types(self) -> list[Any]:
        """As listed, or by interval."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        interval, layers = self.full_attention_interval, range(self.num_hidden_layers)
        fits = is_whole(interval) and interval > 0
        self.expect(fits, "full_attention_interval", "a positive integer in config.json")
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in layers]

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention with norms of queries and keys, and a gate."""
        norm = HeadNorm(self.rms_norm_eps, offset=self.norm_offset)
        bias = self.attention_bias
        return self.attention_mixer(types, has_bias=bias, is_gated=True, norm=norm)

    def delta(self, types: CacheTypes) -> Mixer:
        """Gated delta net."""
        heads = (self.linear_num_key_heads, self.linear_num_value_heads)
        sizes = (self.linear_key_head_dim, self.linear_value_head_dim)
        return self.delta_mixer(types, *heads, *sizes, eps=self.rms_norm_eps, names=self.names)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        return [GatedMLP(*weights.gated_mlp("mlp.", self.hidden_size, self.intermediate_size))]


class Qwen35Moe(HasSharedExpert, Qwen35):
    """The same with experts."""

    # of an MLP, which no layer has
    intermediate_size = constant(0)
    hidden_size = count(2048)
    num_hidden_layers = count(40)
    num_key_value_heads = optional(2)
    num_experts = count(256)
    moe_intermediate_size = count(512)
    # all layers have experts
    norm_topk_prob = constant(True)
    decoder_sparse_step = constant(1)
    mlp_only_layers = constant(None)
