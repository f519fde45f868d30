"""Experts as Qwen has them: beside one that every token visits, which a gate weighs."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import count
from blockstride.models.modules import ExpertMLP, FeedForward, GatedMLP, LayerWeights, Router


class HasQwenExperts(ModelFamily):
    """A family with experts beside a shared one.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        moe_intermediate_size: Inner width of one.
        shared_expert_intermediate_size: Inner width of the one that every token visits.
    """

    num_experts = count(512)
    num_experts_per_tok = count(10)
    moe_intermediate_size = count(512)
    shared_expert_intermediate_size = count(512)

    @property
    def is_renormalised(self) -> bool:
        """Whether the weights of the experts that a token visits add up to one."""
        return True

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        most = self.num_experts
        self.expect(self.num_experts_per_tok <= most, "num_experts_per_tok", f"at most {most}")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts, and the one that every token visits."""
        hidden, experts = self.hidden_size, self.num_experts
        scores = weights.tensor("mlp.gate.weight", experts, hidden)
        router = Router(scores, self.num_experts_per_tok, is_renormalised=self.is_renormalised)
        inner = self.moe_intermediate_size
        chosen = ExpertMLP(router, *weights.experts("mlp.experts.", experts, hidden, inner))
        inner = self.shared_expert_intermediate_size
        gate = weights.tensor("mlp.shared_expert_gate.weight", 1, hidden)
        shared = weights.gated_mlp("mlp.shared_expert.", hidden, inner)
        return [chosen, GatedMLP(*shared, token_gate=gate)]
