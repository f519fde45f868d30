"""OLMo-hybrid: gated delta nets, and attention with norms behind its parts in some layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.delta import HasDelta
from blockstride.models.families.keys import anything, count, optional, switch
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import (
    Branch,
    DeltaNames,
    FeedForward,
    GatedMLP,
    LayerWeights,
    Mixer,
    WidthNorm,
)

NAMES = DeltaNames(
    {
        name: name[0].replace("g", "z")
        for name in ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")
    },
    convolutions=("q_conv1d", "k_conv1d", "v_conv1d"),
    norm="o_norm",
    out="o_proj",
)


class OlmoHybrid(HasRope, HasDelta):
    """OLMo-hybrid (Ai2 2026).

    Attributes:
        listed_types: What each layer is, where a file lists them.
        attention_bias: Whether the projections in and out of attention have a bias.
        linear_num_key_heads: Heads of queries and keys of a gated delta net, where a file says so,
        linear_num_value_heads: and of values; both as many as attention has otherwise.
        linear_key_head_dim: Elements of a query or key there,
        linear_value_head_dim: and of a value.
        linear_allow_neg_eigval: Whether a head may move past its value.
    """

    layers = {"full_attention": ("attention",), "linear_attention": ("delta",)}
    vocab_size = count(100352)
    hidden_size = count(3840)
    num_attention_heads = count(30)
    max_position_embeddings = count(65536)
    listed_types = anything(None, "layer_types")
    attention_bias = switch(False)
    linear_num_key_heads = optional()
    linear_num_value_heads = optional()
    linear_key_head_dim = optional()
    linear_value_head_dim = optional()
    linear_allow_neg_eigval = switch(True)

    def layer_types(self) -> list[Any]:
        """As listed; else attention in every fourth layer, and in the last if there are fewer."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        layers = range(self.num_hidden_layers)
        words = ["linear_attention" if (i + 1) % 4 else "full_attention" for i in layers]
        return words if len(words) >= 4 else [*words[:-1], "full_attention"]

    @property
    def has_rope(self) -> bool:
        """Whether there are positions at all: not where a file has null for their base."""
        inner = self.rope_said
        said = inner if "rope_theta" in inner else self.values
        return said.get("rope_theta", 0) is not None

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention with norms over all queries, and over all keys, of a token."""
        norm = WidthNorm(self.rms_norm_eps, self.num_attention_heads, self.kv_heads)
        return self.attention_mixer(types, has_bias=self.attention_bias, norm=norm)

    def delta(self, types: CacheTypes) -> Mixer:
        """Gated delta net."""
        key_heads = self.linear_num_key_heads or self.num_attention_heads
        heads = self.linear_num_value_heads or self.num_attention_heads
        key = self.linear_key_head_dim or int(0.75 * self.hidden_size / key_heads)
        value = self.linear_value_head_dim or 2 * key
        self.expect(key > 0, "linear_key_head_dim", "a positive integer in config.json")
        strength = 2.0 if self.linear_allow_neg_eigval else 1.0
        sizes = (key_heads, heads, key, value)
        return self.delta_mixer(types, *sizes, eps=1e-5, strength=strength, names=NAMES)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        return [GatedMLP(*weights.gated_mlp("mlp.", self.hidden_size, self.intermediate_size))]

    def branches(
        self, layer: int, mixers: Mapping[str, Mixer], weights: LayerWeights
    ) -> Sequence[Branch]:
        """Norms stand behind the parts of a layer with attention, before those of another."""
        for kind, mixer in mixers.items():
            mixer.load(weights.under(self.modules[kind]))
        halves = ([*mixers.values()], self.feed_forward(layer, weights))
        is_behind = "attention" in mixers
        # published files have the first names, those that transformers saves others
        names = (
            (
                ("post_attention_layernorm", "feedforward_layer_norm"),
                ("post_feedforward_layernorm",),
            )
            if is_behind
            else (
                ("attention_layer_norm", "input_layernorm"),
                ("feedforward_layer_norm", "post_attention_layernorm"),
            )
        )
        found = [
            weights.either(*(f"{name}.weight" for name in each)).removesuffix(".weight")
            for each in names
        ]
        places = [(None, name) if is_behind else (name, None) for name in found]
        pairs = zip(halves, places, strict=True)
        return [self.branch(parts, weights, *norms) for parts, norms in pairs]
