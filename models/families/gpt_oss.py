"""gpt-oss: sinks, a window in every other layer, experts with biases and a gate of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.checkpoint import Part
from blockstride.models.families.keys import anything, count, number, optional, switch
from blockstride.models.families.windows import HasWindow
from blockstride.models.modules import ExpertMLP, FeedForward, LayerWeights, Router


class GptOss(HasWindow):
    """gpt-oss (OpenAI 2025), whose experts are plain numbers.

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias.
        num_experts: Experts of a layer.
        num_experts_per_tok: Experts that each token visits.
        swiglu_alpha: How steep the sigmoid of the experts' gate is.
        swiglu_limit: What a gate is kept below, and what it gates within.
    """

    default_theta = 150000.0
    default_rope = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    vocab_size = count(201088)
    hidden_size = count(2880)
    intermediate_size = count(2880)
    max_position_embeddings = count(131072)
    num_hidden_layers = count(36)
    num_attention_heads = count(64)
    num_key_value_heads = optional(8)
    head_dim = optional(64)
    rms_norm_eps = number(1e-5)
    sliding_window = anything(128)
    attention_bias = switch(True)
    num_experts = count(128, "num_experts", "num_local_experts")
    num_experts_per_tok = count(4)
    swiglu_alpha = number(1.702)
    swiglu_limit = number(7.0)

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window, in a file without a list: the first, and every other."""
        return layer % 2 == 0

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        fits = self.num_experts_per_tok <= self.num_experts
        self.expect(fits, "num_experts_per_tok", f"at most {self.num_experts}")
        self.expect(self.swiglu_limit > 0, "swiglu_limit", "a positive number")

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {"has_bias": self.attention_bias, "has_sinks": True}

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """Experts."""
        weights, count = weights.under("mlp"), self.num_experts
        router = Router(
            weights.tensor("router.weight", count, self.hidden_size),
            self.num_experts_per_tok,
            is_renormalised=True,
            bias=weights.tensor("router.bias", count),
        )
        gate = kernels.Gate(slope=self.swiglu_alpha, limit=self.swiglu_limit, offset=1.0)
        return [ExpertMLP(router, gate=gate, **self._matrices(weights.under("experts")))]

    def _matrices(self, weights: LayerWeights) -> dict[str, Any]:
        """A rank's part of all experts' matrices, which files have the other way round."""
        count, hidden, inner = self.num_experts, self.hidden_size, self.intermediate_size
        share = weights.parallel.share("intermediate_size", inner)
        # gate and up lie side by side, channel by channel
        pairs = Interval(2 * share.start, 2 * share.stop)
        up = weights.tensor("gate_up_proj", count, hidden, 2 * inner, part=Part(2, pairs))
        up_bias = weights.tensor("gate_up_proj_bias", count, 2 * inner, part=Part(1, pairs))
        down = weights.tensor("down_proj", count, inner, hidden, part=Part(1, share))
        down_bias = weights.tensor("down_proj_bias", count, hidden)
        return {
            "up": [_halves(matrix.T).contiguous() for matrix in up],
            "up_bias": _halves(up_bias.T).T.contiguous(),
            "down": [matrix.T.contiguous() for matrix in down],
            "down_bias": down_bias if weights.parallel.rank == 0 else None,
        }


def _halves(rows: Tensor) -> Tensor:
    """Every other row, and then the others."""
    return rows.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)
