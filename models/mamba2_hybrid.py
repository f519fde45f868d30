"""What hybrids of attention and Mamba-2 share: the names of their numbers, and their mixers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from blockstride.models.config_values import token_ids
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.modules import AttentionMixer, LayerWeights, Mamba2Mixer, Mixer, Rotary


class Mamba2Config(ABC):
    """What follows from the numbers of such a config, which is a dataclass."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_attention_heads: int
    num_key_value_heads: int
    attention_bias: bool
    mamba_n_heads: int
    mamba_n_groups: int
    mamba_d_state: int
    mamba_d_conv: int
    mamba_expand: int
    mamba_conv_bias: bool
    mamba_proj_bias: bool
    eos_token_id: int | list[int] | None

    @property
    def head_size(self) -> int:
        """Elements of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def d_inner(self) -> int:
        """Channels of a Mamba mixer."""
        return self.mamba_expand * self.hidden_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        return token_ids(self.eos_token_id)

    @abstractmethod
    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""


Mamba2ConfigType = TypeVar("Mamba2ConfigType", bound=Mamba2Config)


class Mamba2Hybrid(HybridModel[Mamba2ConfigType]):
    """Attention in some layers, Mamba-2 in the others; see `HybridModel`."""

    rotary: Rotary | None = None
    attention_scale: float | None = None

    def make_mixer(self, layer: int, weights: LayerWeights) -> Mixer:
        """Attention or Mamba-2, as the config says."""
        config = self.config
        if config.has_attention(layer):
            return AttentionMixer(
                weights,
                config.hidden_size,
                config.num_attention_heads,
                config.num_key_value_heads,
                config.head_size,
                dtype=self.dtypes.kv,
                scale=self.attention_scale,
                rotary=self.rotary,
                has_bias=config.attention_bias,
            )
        return Mamba2Mixer(
            weights,
            config.hidden_size,
            config.mamba_n_heads,
            config.d_inner // config.mamba_n_heads,
            config.mamba_d_state,
            config.mamba_d_conv,
            n_groups=config.mamba_n_groups,
            eps=config.rms_norm_eps,
            dtypes=self.dtypes,
            conv_order=self.conv_order,
            has_conv_bias=config.mamba_conv_bias,
            has_proj_bias=config.mamba_proj_bias,
        )
