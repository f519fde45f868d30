"""What each kind of mixer caches, told from the numbers of a config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from blockstride.layouts import (
    CacheSpec,
    full_attention,
    gated_delta_net,
    latent_attention,
    mamba1,
    mamba2,
    short_conv,
    sliding_window_attention,
)
from blockstride.models.hf_config.keys import Keys


@dataclass(frozen=True)
class CacheTypes:
    """What the caches hold.

    Attributes:
        kv: Dtype of keys and values.
        conv: Dtype of convolution states.
        ssm: Dtype of recurrent states.
        conv_order: Memory order of convolution states, `DS` or `SD`.
    """

    kv: torch.dtype
    conv: torch.dtype
    ssm: torch.dtype
    conv_order: str


def attention(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Attention over all tokens."""
    return full_attention(*_kv_heads(keys), types.kv)


def window_attention(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Attention over the last `sliding_window` tokens."""
    window = keys.count("sliding_window")
    return sliding_window_attention(*_kv_heads(keys), types.kv, window=window)


def _kv_heads(keys: Keys) -> tuple[int, int]:
    """KV heads and their size; as many as query heads, and an equal share of the width, if open."""
    heads = keys.count("num_attention_heads")
    kv_heads = keys.count("num_key_value_heads", heads)
    keys.expect(heads % kv_heads == 0, "num_key_value_heads", f"a divisor of {heads}")
    if keys.value("head_dim") is not None:
        return kv_heads, keys.count("head_dim")
    width = keys.count("attention_width")
    keys.expect(width % heads == 0, "num_attention_heads", f"a divisor of {width}")
    return kv_heads, width // heads


def latent(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Multi-head latent attention."""
    return latent_attention(keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim"), types.kv)


def mamba1_mixer(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Mamba-1, whose width is `d_inner`, or `expand` times the hidden size."""
    return mamba1(
        keys.count("d_inner", _expanded(keys)),
        keys.count("d_state"),
        _conv_width(keys, "d_conv"),
        conv_dtype=types.conv,
        ssm_dtype=types.ssm,
        conv_order=types.conv_order,
    )


def mamba2_mixer(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Mamba-2, whose heads share its width out."""
    heads, groups = keys.count("ssm_heads"), keys.count("groups")
    inner = keys.value("d_inner") or _expanded(keys)
    head_dim = keys.count("ssm_head_dim", None if inner is None else inner // heads)
    if inner is not None:
        fits = heads * head_dim == inner
        keys.expect(fits, "ssm_heads", f"heads of {head_dim} that make up {inner} channels")
    keys.expect(heads % groups == 0, "groups", f"a divisor of {heads}")
    return mamba2(
        heads,
        head_dim,
        keys.count("d_state"),
        _conv_width(keys, "d_conv"),
        n_groups=groups,
        conv_dtype=types.conv,
        ssm_dtype=types.ssm,
        conv_order=types.conv_order,
    )


def delta_net(keys: Keys, types: CacheTypes) -> CacheSpec:
    """Gated delta net."""
    key_heads, heads = keys.count("linear_num_key_heads"), keys.count("linear_num_value_heads")
    keys.expect(heads % key_heads == 0, "linear_num_key_heads", f"a divisor of {heads}")
    return gated_delta_net(
        key_heads,
        heads,
        keys.count("linear_key_head_dim"),
        keys.count("linear_value_head_dim"),
        _conv_width(keys, "linear_conv_kernel_dim"),
        conv_dtype=types.conv,
        ssm_dtype=types.ssm,
        conv_order=types.conv_order,
    )


def convolution(keys: Keys, types: CacheTypes) -> CacheSpec:
    """A gated short convolution over the hidden size."""
    width = _conv_width(keys, "conv_L_cache")
    channels = keys.count("hidden_size")
    return short_conv(channels, width, conv_dtype=types.conv, conv_order=types.conv_order)


def _expanded(keys: Keys) -> int | None:
    """Channels of a mixer that is `expand` times as wide as the model; None if it is not."""
    expand = keys.value("expand")
    if expand is None:
        return None
    is_factor = isinstance(expand, (int, float)) and not isinstance(expand, bool) and expand > 0
    keys.expect(is_factor, "expand", "a positive number in config.json")
    return int(expand * keys.count("hidden_size"))


def _conv_width(keys: Keys, role: str) -> int:
    """Taps of a convolution, the current one included."""
    width = keys.count(role)
    keys.expect(width >= 2, role, "at least 2")
    return width


MIXERS: Mapping[str, Callable[[Keys, CacheTypes], CacheSpec]] = {
    "attention": attention,
    "window": window_attention,
    "latent": latent,
    "mamba1": mamba1_mixer,
    "mamba2": mamba2_mixer,
    "delta": delta_net,
    "conv": convolution,
}
"""Kind of mixer -> what it caches."""
