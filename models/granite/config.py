"""The numbers of a Granite hybrid, read from its config.json and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockstride.kernels.checks import expect
from blockstride.models.config_values import (
    expect_heads,
    expect_mamba2,
    expect_positive,
    read_values,
)
from blockstride.models.mamba2_hybrid import Mamba2Config

ATTENTION = ("attention", "full_attention")
MAMBA = ("mamba", "linear_attention")


@dataclass(frozen=True)
class GraniteHybridConfig(Mamba2Config):
    """Architecture of a Granite 4 hybrid, under the names of its config.json.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Inner width of one expert.
        shared_intermediate_size: Inner width of the MLP that every token visits.
        num_hidden_layers: Layers; each has a mixer (attention or Mamba-2) and a feed-forward part.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads.
        layer_types: The mixer of each layer.
        mamba_n_heads: Heads of a Mamba mixer.
        num_local_experts: Experts of a layer; 0 for none.
        num_experts_per_tok: Experts that each token visits.
        mamba_n_groups: Groups of heads that share B and C.
        mamba_d_state: State size of a channel.
        mamba_d_conv: Width of the causal convolution.
        mamba_expand: Inner channels per hidden channel.
        mamba_conv_bias: Whether the convolution has a bias.
        mamba_proj_bias: Whether the projections in and out of a Mamba mixer have one.
        attention_bias: Whether those of attention have one.
        position_embedding_type: `"rope"`, or anything else for no positions.
        attention_multiplier: Of attention scores.
        embedding_multiplier: Of embeddings.
        residual_multiplier: Of what a layer adds to the residual stream.
        logits_scaling: Divides logits.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the head is the embedding.
        hidden_act: Activation; only `"silu"` exists.
        max_position_embeddings: Longest sequence the model was made for.
        eos_token_id: Token, or tokens, that end a text.

    Raises:
        ValueError: A number that can't be, or two that contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    shared_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    layer_types: list[str]
    mamba_n_heads: int
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    attention_bias: bool = False
    position_embedding_type: str | None = None
    attention_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        expect_positive(self, but=("num_local_experts", "eos_token_id"))
        layers, kinds = self.num_hidden_layers, (*ATTENTION, *MAMBA)
        fits = len(self.layer_types) == layers and set(self.layer_types) <= set(kinds)
        expect(fits, "layer_types", f"{layers} of {kinds}", self.layer_types)
        expect_heads(self.hidden_size, self.num_attention_heads, self.num_key_value_heads)
        expect_mamba2(self.d_inner, self.mamba_n_heads, self.mamba_n_groups, self.mamba_d_conv)
        if self.num_local_experts:
            most, experts = self.num_local_experts, self.num_experts_per_tok
            expect(experts <= most, "num_experts_per_tok", f"at most {most}", experts)
        expect(self.hidden_act == "silu", "hidden_act", "'silu'", repr(self.hidden_act))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GraniteHybridConfig:
        """The config in a parsed config.json; keys that don't bear on inference are ignored.

        Raises:
            ValueError: Another architecture, a missing key, or a value that can't be.
        """
        # older files call it so
        types = values.get("layer_types") or values.get("layers_block_type")
        return read_values(cls, "granitemoehybrid", {**values, "layer_types": types})

    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""
        return self.layer_types[layer] in ATTENTION
