"""Sizes of a trainable hybrid, in the words of Hugging Face's Jamba."""

import dataclasses

from blockstride.checks import expect

VOCAB_SIZE = 264  # 256 bytes, 3 special tokens, and 5 unused ids so that 8 divides it
PAD_ID, BOS_ID, EOS_ID = 256, 257, 258


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """Sizes of a Jamba-style hybrid over bytes; each field is named as in Jamba's `config.json`.

    Layer `i` is attention where `i % attn_layer_period == attn_layer_offset` and Mamba elsewhere.
    Its feed-forward part is a mixture of experts where
    `i % expert_layer_period == expert_layer_offset` and one MLP elsewhere.

    Raises:
        ValueError: A size is not positive, an offset is not below its period, or heads do not
            divide what they should.
    """

    hidden_size: int = 192
    intermediate_size: int = 192
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    attn_layer_period: int = 3
    attn_layer_offset: int = 1
    expert_layer_period: int = 2
    expert_layer_offset: int = 1
    num_experts: int = 4
    num_experts_per_tok: int = 2
    mamba_d_state: int = 16
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_dt_rank: int = 12
    rms_norm_eps: float = 1e-6
    router_aux_loss_coef: float = 0.001

    def __post_init__(self) -> None:
        may_be_zero = ("attn_layer_offset", "expert_layer_offset", "router_aux_loss_coef")
        for name, value in dataclasses.asdict(self).items():
            if name in may_be_zero:
                expect(value >= 0, name, "no negative number", value)
            else:
                expect(value > 0, name, "a positive number", value)
        self._expect_at_most("attn_layer_offset", self.attn_layer_period - 1)
        self._expect_at_most("expert_layer_offset", self.expert_layer_period - 1)
        self._expect_at_most("num_experts_per_tok", self.num_experts)
        self._expect_divisor("num_attention_heads", "hidden_size")
        self._expect_divisor("num_key_value_heads", "num_attention_heads")

    def _expect_at_most(self, name: str, limit: int) -> None:
        value = getattr(self, name)
        expect(value <= limit, name, f"at most {limit}", value)

    def _expect_divisor(self, name: str, of: str) -> None:
        value, whole = getattr(self, name), getattr(self, of)
        expect(whole % value == 0, name, f"a divisor of {of} {whole}", value)

    @property
    def d_inner(self) -> int:
        """Channels of a Mamba layer."""
        return self.mamba_expand * self.hidden_size

    @property
    def head_size(self) -> int:
        """Size of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def is_attention(self, layer: int) -> bool:
        """Whether a layer mixes tokens by attention, not by Mamba."""
        return layer % self.attn_layer_period == self.attn_layer_offset

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward part of a layer is a mixture of experts."""
        return self.num_experts > 1 and layer % self.expert_layer_period == self.expert_layer_offset


CONFIGS = {
    "nano": HybridConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=3, mamba_dt_rank=4
    ),
    "tiny": HybridConfig(),
}
"""Named configs: nano has 0.17 M parameters, tiny 2.9 M."""
