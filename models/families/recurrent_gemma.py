"""RecurrentGemma: real-gated linear recurrent units, and attention over the last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from blockstride import kernels
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.families.keys import (
    anything,
    cap,
    constant,
    count,
    optional,
    share,
    switch,
)
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import FeedForward, GatedMLP, LayerWeights, Mixer, RgLruMixer


class RecurrentGemma(HasRope):
    """RecurrentGemma (Google 2024), which is Griffin. No cache grows past the window.

    Attributes:
        block_types: What layers are, one after the other and over again.
        lru_width: Channels of a recurrent unit; as many as hidden ones when None.
        conv_width: Taps of the convolution before it, the current one included.
        attention_window_size: Tokens that a token attends to, itself included.
        attention_bias: Whether the projections into attention have a bias; that out of it has.

    Source: De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention".
    """

    layers = {"recurrent": ("rg_lru",), "attention": ("window",)}
    modules = {"rg_lru": "temporal_block", "window": "temporal_block"}
    input_norm = "temporal_pre_norm"
    feed_forward_norm = "channel_pre_norm"
    final_norm = "final_norm"
    norm_offset = 1.0
    turning_share = share(0.5, "partial_rotary_factor")
    activations = ("gelu_pytorch_tanh",)
    vocab_size = count(256000)
    hidden_size = count(2560)
    intermediate_size = count(7680)
    num_hidden_layers = count(26)
    num_attention_heads = count(10)
    # what it was trained on; files say nothing of it
    max_position_embeddings = constant(8192)
    hidden_act = anything("gelu_pytorch_tanh", "hidden_activation")
    tie_word_embeddings = switch(True)
    logits_soft_cap = cap(30.0)
    block_types = anything(["recurrent", "recurrent", "attention"])
    lru_width = optional()
    conv_width = count(4, "conv1d_width")
    attention_window_size = count(2048, "sliding_window", "attention_window_size")
    attention_bias = switch(False)

    @cached_property
    def embedding_multiplier(self) -> float:
        """The root of the hidden size, in bfloat16 whatever the model is."""
        return float(torch.tensor(self.hidden_size**0.5, dtype=torch.bfloat16))

    def layer_types(self) -> list[Any]:
        """The row of types, as often as there are layers for it."""
        types = self.as_list("block_types")
        self.expect(types, "block_types", "at least one type of layer")
        return [types[layer % len(types)] for layer in range(self.num_hidden_layers)]

    def rg_lru(self, types: CacheTypes) -> Mixer:
        """A recurrent unit with as many heads as attention has."""
        width, heads = self.lru_width or self.hidden_size, self.num_attention_heads
        self.expect(width % heads == 0, "lru_width", f"a multiple of {heads} heads")
        self.expect(self.conv_width >= 2, "conv_width", "at least 2")
        return RgLruMixer(self.hidden_size, heads, width // heads, self.conv_width, types)

    def window(self, types: CacheTypes) -> Mixer:
        """Attention over the last tokens."""
        size, bias = self.attention_window_size, self.attention_bias
        return self.attention_mixer(types, window=size, has_bias=bias, has_out_bias=True)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP, half as wide as the file says, which counts gate and what it gates."""
        hidden, inner = self.hidden_size, self.intermediate_size // 2
        mlp = weights.under("mlp_block")
        rows = Part(0, weights.parallel.share("intermediate_size / 2", inner))
        biases = [mlp.tensor(f"{name}_proj.bias", inner, part=rows) for name in ("gate", "up")]
        return [
            GatedMLP(
                *mlp.gated_mlp("", hidden, inner),
                gate=kernels.GELU_TANH,
                up_bias=torch.cat(biases),
                down_bias=mlp.addend("down_proj.bias", hidden),
            )
        ]
