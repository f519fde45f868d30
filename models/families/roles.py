"""What families call alike: the numbers of attention and of Mamba, and the mixers made of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import Family
from blockstride.models.families.keys import Key, anything, constant, count, is_real, optional
from blockstride.models.modules import AttentionMixer, Mamba2Mixer, Mixer

# words for a layer, older and newer, and the mixers in it; see `Family.layers`
ATTENTION = {"attention": ("attention",), "full_attention": ("attention",)}
MAMBA2 = {"mamba": ("mamba2",), "linear_attention": ("mamba2",)}


class HasAttention(Family):
    """A family with grouped-query attention in some layers.

    Attributes:
        attention_kind: What attends.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads; as many as query heads when None.
        head_dim: Size of a head; an equal share of `attention_width` when None.
    """

    attention_kind: ClassVar[type[AttentionMixer]] = AttentionMixer
    num_attention_heads = count(32)
    num_key_value_heads = optional()
    head_dim = optional()

    @property
    def attention_width(self) -> int:
        """Elements of all query heads, where `head_dim` is left open."""
        return self.hidden_size

    @cached_property
    def kv_heads(self) -> int:
        """KV heads."""
        heads = self.num_attention_heads
        kv_heads = self.num_key_value_heads or heads
        self.expect(heads % kv_heads == 0, "num_key_value_heads", f"a divisor of {heads}")
        return kv_heads

    @cached_property
    def head_size(self) -> int:
        """Elements of a head."""
        if self.head_dim is not None:
            return self.head_dim
        width, heads = self.attention_width, self.num_attention_heads
        self.expect(width % heads == 0, "num_attention_heads", f"a divisor of {width}")
        return width // heads

    def attention_mixer(self, types: CacheTypes, **how: Any) -> AttentionMixer:
        """Attention of these sizes; the rest is as `AttentionMixer` has it by keyword."""
        sizes = (self.hidden_size, self.num_attention_heads, self.kv_heads, self.head_size)
        return self.attention_kind(*sizes, types, **how)

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention over all tokens."""
        return self.attention_mixer(types)


class HasMamba(Family):
    """A family with Mamba mixers of either kind, by the names that hybrids have for their numbers.

    Attributes:
        d_state: State size of a channel.
        d_conv: Width of the causal convolution.
        expand: Inner channels per hidden channel; None where the width follows from others.
        d_inner: Inner channels, where a file says so; else it follows from `expand`.
    """

    d_state = count(256, "mamba_d_state")
    d_conv = count(4, "mamba_d_conv")
    expand = anything(2, "mamba_expand")
    d_inner: Key[int | None] = constant(None)

    @cached_property
    def inner_size(self) -> int | None:
        """Channels of a mixer; None where they follow from its heads."""
        if self.d_inner is not None or self.expand is None:
            return self.d_inner
        fits = is_real(self.expand) and self.expand > 0
        self.expect(fits, "expand", "a positive number in config.json")
        return int(self.expand * self.hidden_size)

    @property
    def channels(self) -> int:
        """Channels of a mixer whose width has to be said."""
        self.expect(self.inner_size is not None, "expand", "a positive number in config.json")
        return self.inner_size or 0

    @cached_property
    def conv_width(self) -> int:
        """Taps of the convolution, the current one included."""
        self.expect(self.d_conv >= 2, "d_conv", "at least 2")
        return self.d_conv


class HasMamba2(HasMamba):
    """A family with Mamba-2 in some layers.

    Attributes:
        ssm_heads: Heads of a mixer.
        ssm_head_dim: Channels of one; an equal share of all when None.
        groups: Groups of heads that share B and C.
    """

    ssm_heads = count(128, "mamba_n_heads")
    ssm_head_dim = optional(None, "mamba_d_head")
    groups = count(1, "mamba_n_groups")

    def mamba2_mixer(self, types: CacheTypes, **how: Any) -> Mamba2Mixer:
        """Mamba-2 of these sizes; the rest is as `Mamba2Mixer` has it by keyword."""
        heads, groups, inner = self.ssm_heads, self.groups, self.inner_size
        size = self.ssm_head_dim
        if size is None:
            self.expect(inner is not None, "ssm_head_dim", "a positive integer in config.json")
            size = (inner or 0) // heads
        fits = inner is None or heads * size == inner
        self.expect(fits, "ssm_heads", f"heads of {size} that make up {inner} channels")
        self.expect(heads % groups == 0, "groups", f"a divisor of {heads}")
        sizes = (self.hidden_size, heads, size, self.d_state, self.conv_width)
        return Mamba2Mixer(*sizes, types, n_groups=groups, **how)

    def mamba2(self, types: CacheTypes) -> Mixer:
        """Mamba-2."""
        return self.mamba2_mixer(types)
