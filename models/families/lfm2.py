"""LFM2: gated short convolutions, and attention in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, constant, count, number, optional, switch
from blockstride.models.families.roles import ATTENTION
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import (
    FeedForward,
    GatedMLP,
    HeadNorm,
    LayerWeights,
    Mixer,
    ShortConvMixer,
)

MLP = ("w1", "w3", "w2")
"""What tensors call gate, up and down."""


class Lfm2(HasRope):
    """LFM2 (Liquid AI 2025).

    Attributes:
        listed_types: What each layer is, where a file lists them.
        full_attn_idxs: The layers with attention, in older files; all where they don't say.
        conv_width: Taps of a convolution, the current one included.
        conv_bias: Whether it and the projections around it have a bias.
        block_auto_adjust_ff_dim: Whether an MLP is narrower than `intermediate_size` says: two
            thirds of it, times
        block_ffn_dim_multiplier: this, rounded up to a multiple of
        block_multiple_of: so many.
    """

    layers = {**ATTENTION, "conv": ("conv",)}
    default_theta = 1e6
    input_norm, feed_forward_norm = "operator_norm", "ffn_norm"
    final_norm = "embedding_norm"
    vocab_size = count(65536)
    hidden_size = count(2560)
    intermediate_size = count(12288, "block_ff_dim", "intermediate_size")
    num_key_value_heads = optional(8)
    max_position_embeddings = count(128000)
    rms_norm_eps = number(1e-5, "norm_eps")
    hidden_act = constant("silu")
    tie_word_embeddings = switch(True, "tie_embedding", "tie_word_embeddings")
    listed_types = anything(None, "layer_types")
    full_attn_idxs = anything()
    conv_width = count(3, "conv_L_cache")
    conv_bias = switch(False)
    block_auto_adjust_ff_dim = switch(True)
    block_ffn_dim_multiplier = number(1.0)
    block_multiple_of = count(256)

    def layer_types(self) -> list[Any]:
        """As listed, or attention in the layers that are named."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        if self.full_attn_idxs is None:
            return ["attention"] * self.num_hidden_layers
        return self.indexed("full_attn_idxs", "conv")

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention with norms of queries and keys."""
        norm = HeadNorm(self.rms_norm_eps, query="q_layernorm", key="k_layernorm")
        return self.attention_mixer(types, norm=norm, out_name="out_proj")

    def conv(self, types: CacheTypes) -> Mixer:
        """A gated short convolution over the hidden size."""
        width = self.conv_width
        self.expect(width >= 2, "conv_width", "at least 2")
        return ShortConvMixer(self.hidden_size, width, types, has_bias=self.conv_bias)

    @property
    def inner_size(self) -> int:
        """Inner width of an MLP."""
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        size = int(self.block_ffn_dim_multiplier * int(2 * self.intermediate_size / 3))
        return -(-size // self.block_multiple_of) * self.block_multiple_of

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        sizes = (self.hidden_size, self.inner_size)
        return [GatedMLP(*weights.gated_mlp("feed_forward.", *sizes, MLP))]
