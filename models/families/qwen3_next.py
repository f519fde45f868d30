"""Qwen3-Next: what Qwen 3.5 has with experts, and projections that are joined by key heads."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.keys import anything, count, is_whole, optional, switch
from blockstride.models.families.qwen3_5 import Qwen35
from blockstride.models.families.qwen_experts import HasQwenExperts
from blockstride.models.modules import DeltaNames, FeedForward, GatedMLP, LayerWeights


class Qwen3Next(HasQwenExperts, Qwen35):
    """Qwen3-Next (Alibaba 2025).

    Attributes:
        decoder_sparse_step: One layer in so many has experts, the last of each run; others an MLP.
        mlp_only_layers: Layers that have an MLP all the same.
        norm_topk_prob: Whether the weights of the experts that a token visits add up to one.
    """

    names = DeltaNames({"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}, by_key_head=True)
    vocab_size = count(151936)
    hidden_size = count(2048)
    intermediate_size = count(5632)
    num_hidden_layers = count(48)
    num_key_value_heads = optional(2)
    decoder_sparse_step = count(1)
    mlp_only_layers = anything()
    norm_topk_prob = switch(True)

    @property
    def is_renormalised(self) -> bool:
        """Whether the weights of the experts that a token visits add up to one."""
        return self.norm_topk_prob

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        only = self.mlp_only_layers
        fits = only is None or (isinstance(only, list) and all(is_whole(i) for i in only))
        self.expect(fits, "mlp_only_layers", "a list of layers")

    def has_experts(self, layer: int) -> bool:
        """Whether a layer is a mixture of experts; else it has one MLP."""
        is_chosen = (layer + 1) % self.decoder_sparse_step == 0
        return is_chosen and layer not in (self.mlp_only_layers or ())

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts, or one MLP."""
        if self.has_experts(layer):
            return super().feed_forward(layer, weights)
        return [GatedMLP(*weights.gated_mlp("mlp.", self.hidden_size, self.intermediate_size))]
