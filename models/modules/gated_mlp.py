"""The feed-forward part of a Jamba layer: one gated MLP, or experts that a router picks from."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride import kernels
from blockstride.models.checkpoint import Part
from blockstride.models.jamba.config import JambaConfig
from blockstride.models.jamba.weights import LayerWeights

# tokens whose inner activations stay in a CPU's cache, and in malloc's heap, between products
CPU_TOKENS = 512


class GatedMLP:
    """`down(silu(gate(x)) * up(x))`, gate and up joined into one projection.

    Ranks share the inner width and add up what comes down.
    """

    def __init__(self, config: JambaConfig, weights: LayerWeights) -> None:
        gate_up, down = _projections(config, weights, "feed_forward.")
        self.gate_up, self.down = kernels.pack_weight(gate_up), kernels.pack_weight(down)
        self.parallel = weights.parallel

    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"]
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """The MLP of each token."""
        if hidden.is_cpu and len(hidden) > CPU_TOKENS:
            mixed = torch.cat([self._mlp(tokens) for tokens in hidden.split(CPU_TOKENS)])
        else:
            mixed = self._mlp(hidden)
        return self.parallel.all_reduce(mixed)

    def _mlp(self, hidden: Tensor) -> Tensor:
        return kernels.linear(kernels.silu_and_mul(kernels.linear(hidden, self.gate_up)), self.down)


class ExpertMLP:
    """Mixture of experts: each token visits its `num_experts_per_tok` most likely ones.

    Their outputs are weighted with the router's probabilities over all experts, not renormalised.
    Ranks share the inner width of every expert.
    """

    def __init__(self, config: JambaConfig, weights: LayerWeights) -> None:
        self.router = weights.tensor(
            "feed_forward.router.weight", config.num_experts, config.hidden_size
        )
        experts = [
            _projections(config, weights, f"feed_forward.experts.{i}.")
            for i in range(config.num_experts)
        ]
        self.gate_up = kernels.pack_experts([gate_up for gate_up, _ in experts])
        self.down = kernels.pack_experts([down for _, down in experts])
        self.top_k = config.num_experts_per_tok
        self.parallel = weights.parallel

    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"]
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """The weighted sum of each token's experts."""
        probabilities = kernels.linear(hidden, self.router).softmax(-1, dtype=torch.float32)
        weights, ids = probabilities.topk(self.top_k, dim=-1)
        weights = weights.to(hidden.dtype)
        return self.parallel.all_reduce(
            kernels.expert_mlp(hidden, self.gate_up, self.down, ids, weights)
        )


def _projections(config: JambaConfig, weights: LayerWeights, prefix: str) -> tuple[Tensor, Tensor]:
    hidden, inner = config.hidden_size, config.intermediate_size
    share = weights.parallel.share("intermediate_size", inner)
    gate = weights.tensor(f"{prefix}gate_proj.weight", inner, hidden, part=Part(0, share))
    up = weights.tensor(f"{prefix}up_proj.weight", inner, hidden, part=Part(0, share))
    down = weights.tensor(f"{prefix}down_proj.weight", hidden, inner, part=Part(1, share))
    return torch.cat([gate, up]), down
