"""The numbers of a Jamba checkpoint, read from its config.json and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from blockstride.checks import expect
from blockstride.models.config_values import (
    expect_heads,
    expect_positive,
    read_values,
)


@dataclass(frozen=True)
class JambaConfig:
    """Architecture of a Jamba model (Lieber et al. 2024), under the names of its config.json.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Inner width of an MLP or of one expert.
        num_hidden_layers: Layers; each has a mixer (attention or Mamba) and a feed-forward part.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads; as many as query heads when None.
        num_experts: Experts of a mixture-of-experts layer; 0 or 1 for none anywhere.
        num_experts_per_tok: Experts that each token visits, where there are any.
        expert_layer_period: One layer in so many has experts,
        expert_layer_offset: the first of them this one.
        attn_layer_period: One layer in so many has attention,
        attn_layer_offset: the first of them this one.
        mamba_d_state: State size of a channel.
        mamba_d_conv: Width of the causal convolution.
        mamba_expand: Inner channels per hidden channel.
        mamba_dt_rank: Rank of the step-size projection; `"auto"` for hidden_size / 16, rounded up.
        mamba_conv_bias: Whether the convolution has a bias.
        mamba_proj_bias: Whether the projections in and out of a Mamba mixer have one.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the head is the embedding, where a file has no head.
        head_dim: Size of an attention head; hidden_size / num_attention_heads when None.
        hidden_act: Activation of the feed-forward part; only `"silu"` exists.
        max_position_embeddings: Longest sequence the model was made for.

    Raises:
        ValueError: A number that can't be, or two that contradict each other.
    """

    model_type: ClassVar[str] = "jamba"
    vocab_size: int = 65536
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    num_experts: int = 16
    num_experts_per_tok: int = 2
    expert_layer_period: int = 2
    expert_layer_offset: int = 1
    attn_layer_period: int = 8
    attn_layer_offset: int = 4
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int | str = "auto"
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 262144

    def __post_init__(self) -> None:
        has_experts = self.num_experts > 1
        unused = () if has_experts else ("num_experts", "num_experts_per_tok")
        expect_positive(self, but=("expert_layer_offset", "attn_layer_offset", *unused))
        for kind in ("expert", "attn"):
            offset = getattr(self, f"{kind}_layer_offset")
            period = getattr(self, f"{kind}_layer_period")
            expect(0 <= offset < period, f"{kind}_layer_offset", f"0 to {period - 1}", offset)
        if any(map(self.has_attention, range(self.num_hidden_layers))):
            sizes = (self.num_attention_heads, self.num_kv_heads)
            expect_heads(self.hidden_size, self.head_dim, *sizes)
        if has_experts:
            most, experts = self.num_experts, self.num_experts_per_tok
            expect(experts <= most, "num_experts_per_tok", f"at most {most}", experts)
        expect(self.hidden_act == "silu", "hidden_act", "'silu'", repr(self.hidden_act))
        expect(self.mamba_d_conv >= 2, "mamba_d_conv", "at least 2", self.mamba_d_conv)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JambaConfig:
        """The config in a parsed config.json; keys that don't bear on inference are ignored.

        Raises:
            ValueError: Another architecture, or a value that can't be.
        """
        if values.get("num_local_experts") is not None:
            values = {**values, "num_experts": values["num_local_experts"]}
        return read_values(cls, values, {"num_key_value_heads": None})

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Elements of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def d_inner(self) -> int:
        """Channels of a Mamba mixer."""
        return self.mamba_expand * self.hidden_size

    @property
    def dt_rank(self) -> int:
        """Rank of the step-size projection."""
        if isinstance(self.mamba_dt_rank, str):
            return -(-self.hidden_size // 16)
        return self.mamba_dt_rank

    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba."""
        return layer % self.attn_layer_period == self.attn_layer_offset

    def has_experts(self, layer: int) -> bool:
        """Whether a layer is a mixture of experts; else it has one MLP."""
        chosen = layer % self.expert_layer_period == self.expert_layer_offset
        return chosen and self.num_experts > 1
