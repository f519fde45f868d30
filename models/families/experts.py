"""Experts in some layers, whose router takes the softmax of all, and an MLP in the others."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import anything, count, is_whole, switch
from blockstride.models.modules import ExpertMLP, FeedForward, GatedMLP, LayerWeights, Router


class HasExperts(ModelFamily):
    """A family with experts, beside one whose layers have an MLP.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        moe_intermediate_size: Inner width of an expert.
        norm_topk_prob: Whether the weights of those that a token visits add up to one.
        decoder_sparse_step: One layer in so many has experts, the last of each run.
        mlp_only_layers: Layers that have none all the same.
    """

    num_experts = count(128)
    num_experts_per_tok = count(8)
    moe_intermediate_size = count(768)
    norm_topk_prob = switch(False)
    decoder_sparse_step = count(1)
    mlp_only_layers = anything()

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts instead of an MLP."""
        is_chosen = (layer + 1) % self.decoder_sparse_step == 0
        return is_chosen and layer not in (self.mlp_only_layers or ())

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        fits = self.num_experts_per_tok <= self.num_experts
        self.expect(fits, "num_experts_per_tok", f"at most {self.num_experts}")
        listed = [] if self.mlp_only_layers is None else self.mlp_only_layers
        known = isinstance(listed, list) and all(map(is_whole, listed))
        self.expect(known, "mlp_only_layers", "a list of layers")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts, or what other layers have."""
        if not self.has_experts(layer):
            return super().feed_forward(layer, weights)
        experts, hidden = self.num_experts, self.hidden_size
        scores = weights.tensor("mlp.gate.weight", experts, hidden)
        router = Router(scores, self.num_experts_per_tok, is_renormalised=self.norm_topk_prob)
        sizes = (experts, hidden, self.moe_intermediate_size)
        return [ExpertMLP(router, *weights.experts("mlp.experts.", *sizes))]


class HasSharedExpert(HasExperts):
    """A family with experts beside one that every token visits, and that a gate weighs.

    Attributes:
        shared_expert_intermediate_size: Inner width of that one.
    """

    shared_expert_intermediate_size = count(512)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts and the shared one, or what other layers have."""
        parts = super().feed_forward(layer, weights)
        if not self.has_experts(layer):
            return parts
        hidden, inner = self.hidden_size, self.shared_expert_intermediate_size
        gate = weights.tensor("mlp.shared_expert_gate.weight", 1, hidden)
        shared = weights.gated_mlp("mlp.shared_expert.", hidden, inner)
        return [*parts, GatedMLP(*shared, token_gate=gate)]
