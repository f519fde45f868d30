"""Mixture of experts: every token goes to its `top_k` best experts, none is dropped.

The (token, choice) pairs are sorted by expert, so that each expert is two dense products over its
own rows. Sorting and unsorting are permutations, whose gradients are the inverse permutations: no
scatter adds, so the result does not depend on the order of threads.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from train_jamba.config import HybridConfig


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        rows, order, ctx.inverse = inputs
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0][ctx.inverse], None, None


class Router(nn.Module):
    """Scores every expert for every token."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(
        self, tokens: Float[Tensor, "num_tokens hidden_size"]
    ) -> Float[Tensor, "num_tokens num_experts"]:
        """Probability of every expert, float32."""
        return functional.linear(tokens, self.weight).softmax(dim=-1, dtype=torch.float32)


class Experts(nn.Module):
    """Weights of all experts, gate and up projection stacked."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        inner, hidden = config.intermediate_size, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(config.num_experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(config.num_experts, hidden, inner))

    def forward(
        self,
        rows: Float[Tensor, "num_rows hidden_size"],
        counts: Int[Tensor, " num_experts"],
    ) -> Float[Tensor, "num_rows hidden_size"]:
        """Run the first `counts[0]` rows through expert 0, the next `counts[1]` through 1, ..."""
        outputs = []
        for expert, part in enumerate(rows.split(counts.tolist())):
            gate, up = functional.linear(part, self.gate_up_proj[expert]).chunk(2, dim=-1)
            outputs.append(functional.linear(functional.silu(gate) * up, self.down_proj[expert]))
        return torch.cat(outputs)


class MixtureOfExperts(nn.Module):
    """Feed-forward part that sums the outputs of each token's `top_k` experts.

    The weights are the experts' probabilities as they come from the softmax over all of them.
    """

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.router = Router(config)
        self.experts = Experts(config)
        self.routing: tuple[Tensor, Tensor] | None = None

    def forward(
        self, hidden: Float[Tensor, "batch num_tokens hidden_size"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """Run every token through its experts; the routing is kept for `balancing_loss`."""
        tokens = hidden.flatten(0, 1)
        probabilities = self.router(tokens)
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        counts = chosen.flatten().bincount(minlength=probabilities.shape[1])
        self.routing = probabilities, counts
        order = chosen.flatten().argsort(stable=True)
        inverse = order.argsort()
        rows = tokens.repeat_interleave(self.top_k, dim=0)
        rows = self.experts(_Permute.apply(rows, order, inverse), counts)
        choices = _Permute.apply(rows, inverse, order).unflatten(0, (-1, self.top_k))
        return (choices * weights[..., None]).sum(dim=1).view(hidden.shape)


def balancing_loss(model: nn.Module) -> Float[Tensor, ""]:
    """How unevenly the last forward pass used the experts, as transformers computes it for Jamba.

    Returns:
        `num_experts * sum over experts of (share of tokens * mean probability)`, both taken over
        all layers with experts: `top_k` for even use, 0 for a model without experts.
    """
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    routings = [mixture.routing for mixture in mixtures if mixture.routing is not None]
    if not routings:
        return torch.zeros(())
    probabilities = torch.cat([probability for probability, _ in routings])
    shares = sum(counts for _, counts in routings) / probabilities.shape[0]
    return (shares * probabilities.mean(dim=0)).sum() * probabilities.shape[1]
