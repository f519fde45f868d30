"""Experts in some layers, and an MLP in the others."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.keys import anything, count, is_whole, switch
from blockstride.models.families.transformer import Transformer
from blockstride.models.modules import ExpertMLP, FeedForward, LayerWeights, Router


class HasExperts(Transformer):
    """A family with experts whose router takes the softmax of all.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        moe_intermediate_size: Inner width of an expert.
        norm_topk_prob: Whether the weights of those that a token visits add up to one.
        decoder_sparse_step: One layer in so many has experts.
        mlp_only_layers: Layers that have none.
    """

    num_experts = count(128)
    num_experts_per_tok = count(8)
    moe_intermediate_size = count(768)
    norm_topk_prob = switch(False)
    decoder_sparse_step = count(1)
    mlp_only_layers = anything()

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts instead of an MLP."""
        return layer not in (self.mlp_only_layers or ()) and (
            (layer + 1) % self.decoder_sparse_step == 0
        )

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        fits = self.num_experts_per_tok <= self.num_experts
        self.expect(fits, "num_experts_per_tok", f"at most {self.num_experts}")
        listed = [] if self.mlp_only_layers is None else self.mlp_only_layers
        known = isinstance(listed, list) and all(map(is_whole, listed))
        self.expect(known, "mlp_only_layers", "a list of layers")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts, or one MLP."""
        if not self.has_experts(layer):
            return super().feed_forward(layer, weights)
        return [self.experts(weights)]

    def experts(self, weights: LayerWeights) -> ExpertMLP:
        """The experts of a layer.

        Raises:
            ValueError: A tensor is missing, damaged or misshapen, or ranks can't share it.
        """
        name, count, hidden = self.mlp_name, self.num_experts, self.hidden_size
        router = Router(
            weights.tensor(f"{name}.gate.weight", count, hidden),
            self.num_experts_per_tok,
            is_renormalised=self.norm_topk_prob,
        )
        sizes = (count, hidden, self.moe_intermediate_size)
        return ExpertMLP(router, *weights.experts(f"{name}.experts.", *sizes), gate=self.gate)
