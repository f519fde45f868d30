"""Which experts a token visits, and what each counts."""

from __future__ import annotations

from torch import Tensor

from blockstride import kernels
from blockstride.checks import expect


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
        num_experts, chosen = len(weight), num_groups
        fits = num_groups > 0 and num_experts % num_groups == 0
        expect(fits, "num_groups", f"a divisor of {num_experts} experts", num_groups)
        if num_chosen_groups is not None:
            fits = 0 < num_chosen_groups <= num_groups
            expect(fits, "num_chosen_groups", f"1 to {num_groups}", num_chosen_groups)
            chosen = num_chosen_groups
        available = chosen * (num_experts // num_groups)
        expect(0 < top_k <= available, "top_k", f"1 to {available} experts", top_k)
        self.weight, self.bias, self.correction = kernels.pack_weight(weight), bias, correction
        self.top_k, self.is_renormalised, self.is_sigmoid = top_k, is_renormalised, is_sigmoid
        self.num_groups, self.num_chosen_groups = num_groups, chosen
        self.scale, self.floor = scale, floor

    def choose(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights.

        Args:
            hidden: Tokens `[num_tokens, hidden_size]`.

        Returns:
            Ids `[num_tokens, top_k]` int64, and weights `[num_tokens, top_k]` float32.
        """
        tokens = hidden.to(self.weight.dtype)
        logits = kernels.linear(tokens, self.weight, self.bias).float()
        scores = logits.sigmoid() if self.is_sigmoid else logits.softmax(-1)
        ids = self._preference(scores).topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, ids)
        if self.is_renormalised:
            weights /= weights.sum(-1, keepdim=True).add_(self.floor)
        return ids, weights if self.scale == 1 else weights.mul_(self.scale)

    def _preference(self, scores: Tensor) -> Tensor:
        """What experts are chosen by: scores, corrected, and of chosen groups alone."""
        if self.correction is not None:
            scores = scores + self.correction
        if self.num_chosen_groups == self.num_groups:
            return scores
        groups = scores.view(len(scores), self.num_groups, -1)
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        chosen = best.topk(self.num_chosen_groups, dim=-1).indices
        is_left = best.new_ones(best.shape).scatter_(-1, chosen, 0.0).bool()
        return groups.masked_fill(is_left[..., None], float("-inf")).flatten(1)
