"""Falcon-H1: attention and Mamba-2 side by side in every layer, and factors everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import count, number, optional, several, switch
from blockstride.models.families.mamba2_hybrid import Mamba2Hybrid
from blockstride.models.modules import Branch, FeedForward, GatedMLP, LayerWeights, Mixer


class FalconH1(Mamba2Hybrid):
    """Falcon-H1 (TII 2025).

    Its files say by what to multiply what goes into the parts of a layer and comes out of them;
    weights are multiplied instead, as they are read.

    Attributes:
        mamba_rms_norm: Whether a mixer has a norm beside its gate,
        mamba_norm_before_gate: and whether that comes before the gate.
        projectors_bias: Whether the projection out of a mixer has a bias.
        mlp_bias: Whether the projections of the MLP have a bias; only False exists.
        attention_in_multiplier: Of what attention sees,
        attention_out_multiplier: of what it gives,
        key_multiplier: and of its keys.
        ssm_in_multiplier: Of what a mixer sees,
        ssm_out_multiplier: of what it gives,
        ssm_multipliers: and of its z, x, B, C and dt.
        mlp_multipliers: Of the gate of the MLP, and of what it gives.

    Source: Yang et al., "Tensor Programs V", for the factors.
    """

    layers = {"hybrid": ("attention", "mamba2")}
    feed_forward_norm = "pre_ff_layernorm"
    final_norm = "final_layernorm"
    vocab_size = count(128000)
    intermediate_size = count(14336)
    num_key_value_heads = optional(8)
    max_position_embeddings = count(8192)
    rms_norm_eps = number(1e-5)
    d_inner = optional(1024, "mamba_d_ssm")
    mamba_rms_norm = switch(False)
    mamba_norm_before_gate = switch(True)
    projectors_bias = switch(False)
    mlp_bias = switch(False)
    embedding_multiplier = number(1.0)
    logits_multiplier = number(1.0, "lm_head_multiplier")
    attention_in_multiplier = number(1.0)
    attention_out_multiplier = number(1.0)
    key_multiplier = number(1.0)
    ssm_in_multiplier = number(1.0)
    ssm_out_multiplier = number(1.0)
    ssm_multipliers = several(1.0, 1.0, 1.0, 1.0, 1.0)
    mlp_multipliers = several(1.0, 1.0)

    def layer_types(self) -> list[str]:
        """All alike."""
        return ["hybrid"] * self.num_hidden_layers

    def mamba2(self, types: CacheTypes) -> Mixer:
        """Mamba-2 with or without a norm."""
        return self.mamba2_mixer(
            types,
            has_out_bias=self.projectors_bias,
            has_norm=self.mamba_rms_norm,
            norm_before_gate=self.mamba_norm_before_gate,
        )

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        self.expect(not self.mlp_bias, "mlp_bias", "false")

    def branches(
        self, layer: int, mixers: Mapping[str, Mixer], weights: LayerWeights
    ) -> Sequence[Branch]:
        """The mixers side by side, then the MLP, with all factors in their weights."""
        return super().branches(layer, mixers, weights.times(self._factors()))

    def _factors(self) -> dict[str, float | Tensor]:
        """Name of a tensor of a layer -> its factor."""
        seen, given = self.attention_in_multiplier, self.attention_out_multiplier
        gate, down = self.mlp_multipliers
        parts = self._part_factors()
        return {
            "self_attn.q_proj.weight": seen,
            "self_attn.k_proj.weight": seen * self.key_multiplier,
            "self_attn.k_proj.bias": self.key_multiplier,
            "self_attn.v_proj.weight": seen,
            "self_attn.o_proj.weight": given,
            "self_attn.o_proj.bias": given,
            "mamba.in_proj.weight": self.ssm_in_multiplier * parts,
            "mamba.in_proj.bias": parts,
            "mamba.out_proj.weight": self.ssm_out_multiplier,
            "mamba.out_proj.bias": self.ssm_out_multiplier,
            "feed_forward.gate_proj.weight": gate,
            "feed_forward.down_proj.weight": down,
        }

    def _part_factors(self) -> Tensor:
        """Factors of all rows of a mixer's projection in."""
        inner, shared = self.channels, self.groups * self.d_state
        sizes = torch.tensor([inner, inner, shared, shared, self.ssm_heads])
        factors = torch.tensor(self.ssm_multipliers, dtype=torch.float32)
        return factors.repeat_interleave(sizes)

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        sizes = (self.hidden_size, self.intermediate_size)
        return [GatedMLP(*weights.gated_mlp("feed_forward.", *sizes))]
