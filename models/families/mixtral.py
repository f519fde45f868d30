"""Mixtral: Mistral's attention, and experts in every layer."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.families.keys import count, number, optional
from blockstride.models.families.windows import HasWindow
from blockstride.models.modules import ExpertMLP, FeedForward, LayerWeights, Router


class Mixtral(HasWindow):
    """Mixtral (Mistral 2024).

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
    """

    default_theta = 1e6
    intermediate_size = count(14336)
    max_position_embeddings = count(131072)
    num_key_value_heads = optional(8)
    rms_norm_eps = number(1e-5)
    num_experts = count(8, "num_experts", "num_local_experts")
    num_experts_per_tok = count(2)

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        fits = self.num_experts_per_tok <= self.num_experts
        self.expect(fits, "num_experts_per_tok", f"at most {self.num_experts}")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts."""
        weights = weights.under("block_sparse_moe")
        sizes = (self.num_experts, self.hidden_size)
        router = weights.tensor("gate.weight", *sizes)
        choice = Router(router, self.num_experts_per_tok, is_renormalised=True)
        inner, names = self.intermediate_size, ("w1", "w3", "w2")
        return [ExpertMLP(choice, *weights.experts("experts.", *sizes, inner, names))]
