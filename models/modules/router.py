"""Which experts a token visits, and what each counts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockstride import kernels
from blockstride.kernels.mlp.choose_experts import expect_groups


class Router:
    """Scores experts for each token and chooses the best.

    Args:
        weight: One row for each expert `[num_experts, hidden_size]`; its dtype is what scores are
            computed in.
        top_k: Experts that a token visits.
        is_renormalised: Whether the weights of the experts that a token visits add up to one.
        bias: Added to logits `[num_experts]`; None for none.
        is_sigmoid: Whether each expert is scored by itself, by the sigmoid of its logit; else
            scores are the softmax of all.
        correction: Added to scores where experts are chosen, and not where they are weighed
            `[num_experts]`; None for none.
        num_groups: Groups that experts stand in, one after the other.
        num_chosen_groups: Groups that a token's experts come from: those whose two best add up to
            most; all when None.
        scale: What weights are multiplied by in the end.
        floor: Added to the sum that weights are divided by.

    Raises:
        ValueError: More experts are to be chosen than there are, or experts don't make up groups.

    Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated
    Mixture-of-Experts Layer", 2.1; DeepSeek-AI, "DeepSeek-V3 Technical Report", 2.1.2.
    """

    def __init__(
        self,
        weight: Tensor,
        top_k: int,
        *,
        is_renormalised: bool,
        bias: Tensor | None = None,
        is_sigmoid: bool = False,
        correction: Tensor | None = None,
        num_groups: int = 1,
        num_chosen_groups: int | None = None,
        scale: float = 1.0,
        floor: float = 0.0,
    ) -> None:
        expect_groups(weight.shape[0], top_k, num_groups, num_chosen_groups)
        self.weight, self.bias, self.dtype = kernels.pack_weight(weight), bias, weight.dtype
        self.top_k = top_k
        self.how: dict[str, Any] = {
            "is_sigmoid": is_sigmoid,
            "correction": None if correction is None else correction.float(),
            "num_groups": num_groups,
            "num_chosen_groups": num_chosen_groups,
            "is_renormalised": is_renormalised,
            "scale": scale,
            "floor": floor,
        }

    def choose(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights.

        Args:
            hidden: Tokens `[num_tokens, hidden_size]`.

        Returns:
            Ids `[num_tokens, top_k]` int64, and weights `[num_tokens, top_k]` float32.
        """
        logits = kernels.linear(hidden.to(self.dtype), self.weight, self.bias)
        return kernels.choose_experts(logits, self.top_k, **self.how)
