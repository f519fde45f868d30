"""Gemma 2: a window in every other layer, bounds of scores and logits, norms on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockstride import kernels
from blockstride.models.families.keys import anything, bound, count, number, optional, switch
from blockstride.models.families.windows import HasWindow
from blockstride.models.modules import Branch, LayerWeights, Mixer


class Gemma2(HasWindow):
    """Gemma 2 (Google 2024).

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias.
        query_pre_attn_scalar: Scores are divided by its square root.
        attn_logit_softcapping: Scores are kept below it; None for no such bound.
        use_bidirectional_attention: Whether tokens see later ones, which nothing here does.
    """

    norm_offset = 1.0
    gate = kernels.GELU_TANH
    activations = ("gelu_pytorch_tanh", None)
    vocab_size = count(256000)
    hidden_size = count(2304)
    intermediate_size = count(9216)
    max_position_embeddings = count(8192)
    num_hidden_layers = count(26)
    num_attention_heads = count(8)
    num_key_value_heads = optional(4)
    head_dim = optional(256)
    sliding_window = anything(4096)
    tie_word_embeddings = switch(True)
    hidden_act = anything("gelu_pytorch_tanh", "hidden_activation")
    attention_bias = switch(False)
    query_pre_attn_scalar = number(256.0)
    attn_logit_softcapping = bound(50.0)
    logits_soft_cap = bound(30.0, "final_logit_softcapping")
    use_bidirectional_attention = anything()

    @property
    def embedding_multiplier(self) -> float:
        """Of embeddings."""
        return self.hidden_size**0.5

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window, in a file without a list: the first, and every other."""
        return layer % 2 == 0

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        one_way = not self.use_bidirectional_attention
        self.expect(one_way, "use_bidirectional_attention", "false")
        self.expect(self.query_pre_attn_scalar > 0, "query_pre_attn_scalar", "a positive number")

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        scale, cap = self.query_pre_attn_scalar**-0.5, self.attn_logit_softcapping
        return {"has_bias": self.attention_bias, "scale": scale, "soft_cap": cap}

    def branches(
        self, layer: int, mixers: Mapping[str, Mixer], weights: LayerWeights
    ) -> Sequence[Branch]:
        """Attention, then the MLP, each between two norms."""
        for kind, mixer in mixers.items():
            mixer.load(weights.under(self.modules[kind]))
        norms = ("input_layernorm", "post_attention_layernorm")
        others = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        return [
            self.branch([*mixers.values()], weights, *norms),
            self.branch(self.feed_forward(layer, weights), weights, *others),
        ]
