"""Nemotron-H: layers of one part each, a mixer or a feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.families.grouped_experts import HasGroupedExperts
from blockstride.models.families.keys import anything, constant, count, number, optional, switch
from blockstride.models.families.mamba2_hybrid import RunsMamba2
from blockstride.models.families.roles import ATTENTION, MAMBA2, HasAttention
from blockstride.models.modules import (
    MLP,
    ExpertMLP,
    FeedForward,
    Latent,
    LayerWeights,
    Mixer,
)

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""What `hybrid_override_pattern` writes for a layer."""


class NemotronH(HasGroupedExperts, HasAttention, RunsMamba2):
    """Nemotron-H (NVIDIA 2025). The list of its layers tells their number.

    Attributes:
        block_types: What each layer is,
        hybrid_override_pattern: or a letter for each.
        mlp_hidden_act: Activation of MLPs and experts; only `"relu2"` exists.
        mlp_bias: Whether the projections of MLPs have a bias, those of experts apart.
        time_step_min: Lowest step of the recurrence.
        shared_inner: Inner width of the MLP that every token visits beside experts.
        moe_latent_size: Width of what experts see; that of the residual stream when None.
    """

    layers = {**ATTENTION, **MAMBA2, "mlp": (), "moe": ()}
    prefix = ("backbone.", "model.")
    modules = {"attention": "mixer", "mamba2": "mixer"}
    embedding = "embeddings"
    input_norm = feed_forward_norm = "norm"
    final_norm = "norm_f"
    # the list of layers tells, whatever a file says
    num_hidden_layers = constant(0)
    block_types = anything(None, "layer_types", "layers_block_type")
    hybrid_override_pattern = anything("ME*-")
    vocab_size = count(131072)
    intermediate_size = count(21504)
    max_position_embeddings = count(4096)
    rms_norm_eps = number(1e-5, "layer_norm_epsilon")
    mlp_hidden_act = anything("relu2")
    hidden_act = constant("silu")
    mlp_bias = switch(False)
    num_key_value_heads = optional(8)
    head_dim = optional(128)
    d_state = count(128, "ssm_state_size")
    d_conv = count(4, "mamba_d_conv", "conv_kernel")
    # its own "expand" does not tell the width of its mixers
    expand = constant(None)
    ssm_heads = count(128, "mamba_num_heads")
    ssm_head_dim = optional(64, "mamba_head_dim")
    groups = count(8, "mamba_n_groups", "n_groups")
    mamba_conv_bias = switch(True, "mamba_conv_bias", "use_conv_bias")
    mamba_proj_bias = switch(False, "use_bias")
    time_step_limit = constant((0.0, inf))
    time_step_min = number(1e-3, "mamba_dt_min", "time_step_min")
    num_experts = count(8, "num_local_experts", "n_routed_experts")
    moe_intermediate_size = count(7688)
    shared_inner = count(7688, "moe_shared_expert_intermediate_size")
    moe_latent_size = optional()

    def layer_types(self) -> list[Any]:
        """As listed, or else a letter for every layer."""
        if self.block_types is not None:
            return self.as_list("block_types")
        pattern, name = self.hybrid_override_pattern, "hybrid_override_pattern"
        known = isinstance(pattern, str) and set(pattern) <= set(LETTERS)
        self.expect(known, name, f"a string of {', '.join(LETTERS)} without layer_types")
        return [LETTERS[letter] for letter in pattern]

    def mamba2(self, types: CacheTypes) -> Mixer:
        """Mamba-2, whose steps have a lower limit."""
        return self.mamba2_mixer(types, step_limit=(self.time_step_min, inf))

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        self.expect(self.mlp_hidden_act == "relu2", "mlp_hidden_act", "'relu2'")

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """An MLP, or experts beside one, in layers that have no mixer."""
        word, hidden, mixer = self.layer_types()[layer], self.hidden_size, weights.under("mixer")
        if word == "mlp":
            return [MLP(**mixer.plain_mlp("", hidden, self.intermediate_size, self.mlp_bias))]
        if word != "moe":
            return ()
        shared = mixer.plain_mlp("shared_experts.", hidden, self.shared_inner, self.mlp_bias)
        return [self._experts(mixer), MLP(**shared)]

    def _experts(self, weights: LayerWeights) -> ExpertMLP:
        """Experts, which files have one by one, or all in one."""
        count, latent, dim = self.num_experts, None, self.hidden_size
        if self.moe_latent_size is not None:
            names, dim = ("fc1_latent_proj", "fc2_latent_proj"), self.moe_latent_size
            latent = Latent(weights, names, self.hidden_size, dim, self.mlp_bias)
        inner, under = self.moe_intermediate_size, weights.under("experts")
        if under.prefix + "up_proj" in weights.checkpoint:
            mine = weights.parallel.share("moe_intermediate_size", inner)
            up = list(under.tensor("up_proj", count, inner, dim, part=Part(1, mine)))
            down = list(under.tensor("down_proj", count, dim, inner, part=Part(2, mine)))
        else:
            each = [under.plain_mlp(f"{i}.", dim, inner, False) for i in range(count)]
            up, down = ([mlp[name] for mlp in each] for name in ("up", "down"))
        return ExpertMLP(self.router(weights.under("gate")), up, down, gate=None, latent=latent)
