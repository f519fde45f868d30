"""What hybrids of attention and Mamba-2 share: the names of their numbers, and their mixers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from blockstride.checks import expect
from blockstride.models.config_values import expect_heads, read_limits
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.modules import AttentionMixer, LayerWeights, Mamba2Mixer, Mixer, Rotary


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(ABC):
    """The numbers that such models have in common, under the names of their config.json.

    Attributes:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Inner width of an MLP or of one expert.
        num_hidden_layers: Layers; each has a mixer (attention or Mamba-2) and a feed-forward part.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads; as many as query heads when None.
        head_dim: Size of an attention head; hidden_size / num_attention_heads when None.
        mamba_n_heads: Heads of a Mamba mixer.
        mamba_d_head: Channels of one; `"auto"` for an equal share of all.
        mamba_n_groups: Groups of heads that share B and C.
        mamba_d_state: State size of a channel.
        mamba_d_conv: Width of the causal convolution.
        mamba_expand: Inner channels per hidden channel.
        mamba_conv_bias: Whether the convolution has a bias.
        mamba_proj_bias: Whether the projections in and out of a Mamba mixer have one.
        time_step_limit: Lowest and highest step of the recurrence.
        attention_bias: Whether the projections in and out of attention have a bias.
        rope_theta: Base of the frequencies of rotary positions.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the head is the embedding, where a file has no head.
        hidden_act: Activation; only `"silu"` exists.
        max_position_embeddings: Longest sequence the model was made for.

    Raises:
        ValueError: A number that can't be, or two that contradict each other.
    """

    vocab_size: int
    hidden_size: int = 4096
    intermediate_size: int
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None
    head_dim: int | None = None
    mamba_n_heads: int = 128
    mamba_d_head: int | str = "auto"
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, float] = (0.0, inf)
    attention_bias: bool = False
    rope_theta: float = 10000.0
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    max_position_embeddings: int

    def __post_init__(self) -> None:
        layers = {self.has_attention(i) for i in range(self.num_hidden_layers)}
        if True in layers:
            sizes = (self.num_attention_heads, self.num_kv_heads)
            expect_heads(self.hidden_size, self.head_dim, *sizes)
        if False in layers:
            self._expect_mamba()
        expect(self.hidden_act == "silu", "hidden_act", "'silu'", repr(self.hidden_act))

    def _expect_mamba(self) -> None:
        inner, heads, groups = self.d_inner, self.mamba_n_heads, self.mamba_n_groups
        expect(inner % heads == 0, "mamba_n_heads", f"a divisor of {inner}", heads)
        fits = self.mamba_d_head in ("auto", inner // heads)
        expect(fits, "mamba_d_head", f"'auto' or {inner // heads}", self.mamba_d_head)
        expect(heads % groups == 0, "mamba_n_groups", f"a divisor of {heads} heads", groups)
        expect(self.mamba_d_conv >= 2, "mamba_d_conv", "at least 2", self.mamba_d_conv)

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

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """The config in a parsed config.json; see `read_values`."""

    @abstractmethod
    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""


def mamba2_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A parsed config.json with its limits as numbers, and what null means in it."""
    limits = read_limits(values, "time_step_limit")
    # a bias that is null is none, though one that is not mentioned is there
    null = {"num_key_value_heads": None, "mamba_conv_bias": False}
    return {**values, "time_step_limit": limits}, null


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
                config.num_kv_heads,
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
            step_limit=config.time_step_limit,
        )
