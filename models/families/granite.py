"""Granite 4 hybrids: attention with or without positions, Mamba-2, experts beside an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, count, is_whole, number
from blockstride.models.families.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import ExpertMLP, FeedForward, GatedMLP, LayerWeights, Mixer, Router


class GraniteHybrid(Mamba2Hybrid):
    """Granite 4 hybrid (IBM 2025), `granitemoehybrid` of transformers.

    Attributes:
        block_types: The mixer of each layer; Mamba-2 in all when None.
        shared_intermediate_size: Inner width of the MLP that every token visits.
        num_local_experts: Experts of a layer; 0 for none.
        num_experts_per_tok: Experts that each token visits, where there are any.
        position_embedding_type: `"rope"`, or anything else for no positions.
        attention_multiplier: Of attention scores.
    """

    # older files have the first name
    block_types = anything(None, "layers_block_type", "layer_types")
    # a dense file may say anything of the experts that it doesn't have
    intermediate_size = anything(11008)
    shared_intermediate_size = count(1024)
    num_local_experts = anything(8)
    num_experts_per_tok = anything(2)
    position_embedding_type = anything()
    attention_multiplier = number(1.0)
    embedding_multiplier = number(1.0)
    residual_multiplier = number(1.0)
    logits_scaling = number(1.0)

    def layer_types(self) -> list[Any]:
        """As listed; Mamba-2 alone without a list."""
        if self.block_types is None:
            return ["mamba"] * self.num_hidden_layers
        return self.listed("block_types")

    @property
    def has_rope(self) -> bool:
        """Whether there are positions at all."""
        return self.position_embedding_type == "rope"

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention whose scores are scaled as the file says."""
        bias, scale = self.attention_bias, self.attention_multiplier
        return self.attention_mixer(types, has_bias=bias, scale=scale)

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        experts = self.num_local_experts
        self.expect(is_whole(experts) and experts >= 0, "num_local_experts", "a number of experts")
        if experts:
            for name in ("intermediate_size", "num_experts_per_tok"):
                value = getattr(self, name)
                self.expect(is_whole(value) and value > 0, name, "a positive number")
            fits = self.num_experts_per_tok <= experts
            self.expect(fits, "num_experts_per_tok", f"at most {experts}")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """An MLP that every token visits, and experts if there are any."""
        hidden, inner = self.hidden_size, self.shared_intermediate_size
        names = ("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")
        shared = GatedMLP(*weights.joined_mlps(*names, (), hidden, inner))
        if self.num_local_experts == 0:
            return [shared]
        moe, experts = "block_sparse_moe.", (self.num_local_experts,)
        # published files have the first names, those that transformers saves as it runs the others
        gate_up = weights.either(f"{moe}input_linear.weight", f"{moe}experts.gate_up_proj")
        down = weights.either(f"{moe}output_linear.weight", f"{moe}experts.down_proj")
        router = weights.either(f"{moe}router.layer.weight", f"{moe}router.weight")
        sizes = (hidden, self.intermediate_size)
        gate_ups, downs = weights.joined_mlps(gate_up, down, experts, *sizes)
        choice = Router(
            weights.tensor(router, *experts, hidden), self.num_experts_per_tok, is_renormalised=True
        )
        return [ExpertMLP(choice, list(gate_ups), list(downs)), shared]
