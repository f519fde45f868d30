"""The numbers of a Bamba checkpoint, read from its config.json and checked once."""

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


@dataclass(frozen=True)
class BambaConfig(Mamba2Config):
    """Architecture of a Bamba model, under the names of its config.json.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Inner width of the MLP.
        num_hidden_layers: Layers; each has a mixer (attention or Mamba-2) and an MLP.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads.
        attn_layer_indices: Layers with attention.
        mamba_n_heads: Heads of a Mamba mixer.
        mamba_n_groups: Groups of heads that share B and C.
        mamba_d_state: State size of a channel.
        mamba_d_conv: Width of the causal convolution.
        mamba_expand: Inner channels per hidden channel.
        mamba_conv_bias: Whether the convolution has a bias.
        mamba_proj_bias: Whether the projections in and out of a Mamba mixer have one.
        attention_bias: Whether those of attention have one.
        mlp_bias: Whether those of the MLP have one; only False exists.
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
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    attn_layer_indices: list[int]
    mamba_n_heads: int
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    max_position_embeddings: int = 262144
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        expect_positive(self, but=("eos_token_id",))
        last, layers = self.num_hidden_layers - 1, self.attn_layer_indices
        fits = all(isinstance(i, int) and 0 <= i <= last for i in layers)
        expect(fits, "attn_layer_indices", f"layers from 0 to {last}", layers)
        expect_heads(self.hidden_size, self.num_attention_heads, self.num_key_value_heads)
        expect_mamba2(self.d_inner, self.mamba_n_heads, self.mamba_n_groups, self.mamba_d_conv)
        expect(self.hidden_act == "silu", "hidden_act", "'silu'", repr(self.hidden_act))
        expect(not self.mlp_bias, "mlp_bias", "false", self.mlp_bias)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BambaConfig:
        """The config in a parsed config.json; keys that don't bear on inference are ignored.

        Raises:
            ValueError: Another architecture, a missing key, or a value that can't be.
        """
        return read_values(cls, "bamba", values)

    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""
        return layer in self.attn_layer_indices
