"""Jamba: attention without positions, Mamba-1, MLPs and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import anything, count, is_whole, optional, switch
from blockstride.models.families.roles import HasAttention, HasMamba
from blockstride.models.modules import (
    ExpertMLP,
    FeedForward,
    GatedMLP,
    LayerWeights,
    Mamba1Mixer,
    Mixer,
    Router,
)


class Jamba(HasAttention, HasMamba, ModelFamily):
    """Jamba (Lieber et al. 2024).

    Attributes:
        num_experts: Experts of a mixture-of-experts layer; 0 or 1 for none anywhere.
        num_experts_per_tok: Experts that each token visits, where there are any.
        expert_layer_period: One layer in so many has experts,
        expert_layer_offset: the first of them this one.
        attn_layer_period: One layer in so many has attention,
        attn_layer_offset: the first of them this one.
        mamba_dt_rank: Rank of the step-size projection; hidden_size / 16, rounded up, when None.
        mamba_conv_bias: Whether the convolution of a Mamba mixer has a bias,
        mamba_proj_bias: and whether the projections in and out of it do.
    """

    layers = {"attention": ("attention",), "mamba": ("mamba1",)}
    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"
    vocab_size = count(65536)
    intermediate_size = count(14336)
    num_key_value_heads = optional(8)
    max_position_embeddings = count(262144)
    num_experts = anything(16, "num_local_experts", "num_experts")
    num_experts_per_tok = anything(2)
    expert_layer_period = count(2)
    expert_layer_offset = anything(1)
    attn_layer_period = count(8)
    attn_layer_offset = anything(4)
    d_state = count(16, "mamba_d_state")
    mamba_dt_rank = optional()
    mamba_conv_bias = switch(True)
    mamba_proj_bias = switch(False)

    def layer_types(self) -> list[str]:
        """Attention in one layer of each period, Mamba-1 in the others."""
        self._expect_offset("attn")
        period, offset = self.attn_layer_period, self.attn_layer_offset
        layers = range(self.num_hidden_layers)
        return ["attention" if i % period == offset else "mamba" for i in layers]

    def mamba1(self, types: CacheTypes) -> Mixer:
        """Mamba-1 with norms on dt, B and C."""
        return Mamba1Mixer(
            self.hidden_size,
            self.channels,
            self.d_state,
            self.conv_width,
            types,
            dt_rank=self.mamba_dt_rank or -(-self.hidden_size // 16),
            eps=self.rms_norm_eps,
            has_conv_bias=self.mamba_conv_bias,
            has_proj_bias=self.mamba_proj_bias,
        )

    def has_experts(self, layer: int) -> bool:
        """Whether a layer is a mixture of experts; else it has one MLP."""
        chosen = layer % self.expert_layer_period == self.expert_layer_offset
        return chosen and self.num_experts > 1

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        self._expect_offset("expert")
        experts = self.num_experts
        self.expect(is_whole(experts), "num_experts", "a number of experts")
        if experts > 1:
            top = self.num_experts_per_tok
            self.expect(is_whole(top) and top > 0, "num_experts_per_tok", "a positive number")
            self.expect(top <= experts, "num_experts_per_tok", f"at most {experts}")

    def _expect_offset(self, kind: str) -> None:
        period = getattr(self, f"{kind}_layer_period")
        offset = getattr(self, f"{kind}_layer_offset")
        inside = is_whole(offset) and 0 <= offset < period
        self.expect(inside, f"{kind}_layer_offset", f"0 to {period - 1}")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP, or experts."""
        sizes = (self.hidden_size, self.intermediate_size)
        if not self.has_experts(layer):
            return [GatedMLP(*weights.gated_mlp("feed_forward.", *sizes))]
        name = "feed_forward.router.weight"
        router = weights.tensor(name, self.num_experts, self.hidden_size)
        choice = Router(router, self.num_experts_per_tok, is_renormalised=False)
        experts = weights.experts("feed_forward.experts.", self.num_experts, *sizes)
        return [ExpertMLP(choice, *experts)]
