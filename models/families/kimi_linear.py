"""Kimi Linear: Kimi Delta Attention in most layers, multi-head latent attention in the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.grouped_experts import HasGroupedExperts
from blockstride.models.families.keys import anything, count, is_whole, number, optional, switch
from blockstride.models.modules import (
    ExpertMLP,
    FeedForward,
    GatedMLP,
    KimiDeltaMixer,
    LatentAttentionMixer,
    LayerWeights,
    Mixer,
)

INNER = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
"""Keys of `linear_attn_config` -> what they are called outside of it, where they count less."""


class KimiLinear(HasGroupedExperts):
    """Kimi Linear (Moonshot AI 2025). No layer has positions but those of the recurrence.

    Attributes:
        num_attention_heads: Heads of attention; all have keys and values of their own, whatever a
            file says of that.
        kv_lora_rank: Elements of a latent.
        q_lora_rank: Width that queries pass on their way; None for one projection.
        qk_nope_head_dim: Elements of a key that are a head's own,
        qk_rope_head_dim: and of those that all heads share.
        v_head_dim: Elements of a value.
        attention_bias: Whether the projections to latents and out have a bias.
        linear_num_heads: Heads of a delta net,
        linear_head_dim: the elements of each,
        linear_conv_kernel_dim: and the taps of its convolutions, the current one included.
        linear_attn_config: The same in published files, and which layers have one, counted from 1.
        listed_types: What each layer mixes tokens by; every fifth attends where no file says.
        listed_parts: Whether each layer has an MLP or experts,
        first_k_dense_replace: or how many layers have an MLP before the others have experts.
        num_shared_experts: Experts that every token visits, as one MLP so many times as wide.
    """

    layers = {"full_attention": ("latent",), "linear_attention": ("delta",)}
    modules = {"latent": "self_attn", "delta": "self_attn"}
    vocab_size = count(163840)
    hidden_size = count(2304)
    intermediate_size = count(9216)
    num_hidden_layers = count(27)
    max_position_embeddings = count(1048576, "model_max_length", "max_position_embeddings")
    rms_norm_eps = number(1e-5)
    num_attention_heads = count(32)
    kv_lora_rank = count(512)
    q_lora_rank = optional()
    qk_nope_head_dim = count(128)
    qk_rope_head_dim = count(64)
    v_head_dim = count(128)
    attention_bias = switch(False)
    linear_num_heads = count(32)
    linear_head_dim = count(128)
    linear_conv_kernel_dim = count(4)
    linear_attn_config = anything()
    listed_types = anything(None, "layer_types")
    listed_parts = anything(None, "mlp_layer_types")
    first_k_dense_replace = anything(1)
    num_experts = count(256, "num_experts", "num_local_experts")
    num_experts_per_tok = count(8, "num_experts_per_token", "num_experts_per_tok")
    n_group = count(1, "num_expert_group", "n_group")
    norm_topk_prob = switch(True, "moe_renormalize", "norm_topk_prob")
    routed_scaling_factor = number(2.446)
    moe_intermediate_size = count(1024)
    num_shared_experts = count(1, "num_shared_experts", "n_shared_experts")

    def __init__(self, values: Mapping[str, Any]) -> None:
        inner = values.get("linear_attn_config")
        if isinstance(inner, dict):
            values = {**values, **{INNER[key]: inner[key] for key in INNER.keys() & inner.keys()}}
        super().__init__(values)

    def layer_types(self) -> list[Any]:
        """As listed, or as published files number layers."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        inner, layers = self.linear_attn_config, range(1, self.num_hidden_layers + 1)
        self.expect(inner is None or isinstance(inner, dict), "linear_attn_config", "an object")
        full, delta = ((inner or {}).get(name) for name in ("full_attn_layers", "kda_layers"))
        if full is None or delta is None:
            attends = [layer > 1 and layer % 4 == 1 for layer in layers]
            return ["full_attention" if each else "linear_attention" for each in attends]
        known = all(isinstance(of, list) and all(map(is_whole, of)) for of in (full, delta))
        fits = known and {*full, *delta} == {*layers}
        expected = f"each layer from 1 to {len(layers)} in full_attn_layers or kda_layers"
        self.expect(fits, "linear_attn_config", expected)
        return ["linear_attention" if i in delta else "full_attention" for i in layers]

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts; else it has one MLP."""
        if self.listed_parts is not None:
            return self.listed("listed_parts")[layer] == "sparse"
        return layer >= self.first_k_dense_replace

    def latent(self, types: CacheTypes) -> Mixer:
        """Multi-head latent attention."""
        keys = (self.qk_rope_head_dim, self.qk_nope_head_dim)
        sizes = (self.num_attention_heads, self.kv_lora_rank, *keys, self.v_head_dim)
        how = {"query_rank": self.q_lora_rank, "has_bias": self.attention_bias}
        return LatentAttentionMixer(self.hidden_size, *sizes, types, **how)

    def delta(self, types: CacheTypes) -> Mixer:
        """Kimi Delta Attention."""
        width = self.linear_conv_kernel_dim
        self.expect(width >= 2, "linear_conv_kernel_dim", "at least 2")
        sizes = (self.linear_num_heads, self.linear_head_dim, width)
        return KimiDeltaMixer(self.hidden_size, *sizes, types, eps=self.rms_norm_eps)

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        dense, is_listed = self.first_k_dense_replace, self.listed_parts is not None
        fits = is_listed or (is_whole(dense) and dense >= 0)
        self.expect(fits, "first_k_dense_replace", "a number of layers")
        parts = self.listed("listed_parts") if is_listed else ()
        known = all(part in ("dense", "sparse") for part in parts)
        self.expect(known, "listed_parts", "'dense' or 'sparse' for every layer")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP, or experts beside one; files call either as published files call experts."""
        hidden = self.hidden_size
        if not self.has_experts(layer):
            there = weights.either("mlp.gate_proj.weight", "block_sparse_moe.gate_proj.weight")
            prefix = there.removesuffix("gate_proj.weight")
            return [GatedMLP(*weights.gated_mlp(prefix, hidden, self.intermediate_size))]
        experts, inner = self.num_experts, self.moe_intermediate_size
        names, moe = ("w1", "w3", "w2"), weights.under("block_sparse_moe")
        chosen = moe.experts("experts.", experts, hidden, inner, names)
        shared = moe.gated_mlp("shared_experts.", hidden, self.num_shared_experts * inner)
        return [ExpertMLP(self.router(moe.under("gate")), *chosen), GatedMLP(*shared)]
