"""Recurrent caches: one fixed-size state a sequence, for Mamba and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.field import Axis, Field, Shard
from blockstride.layouts.page import ALIGNMENT, Segment
from blockstride.layouts.spec import CacheSpec

CONV_ORDERS = ("DS", "SD")
"""Memory orders of a convolution state: `DS` is (channel, tap), `SD` is (tap, channel)."""


@dataclass(frozen=True)
class StateViews:
    """Typed views of a layer's states, one row a block. They share memory with the pool.

    Attributes:
        arrays: Segment or field name -> `[num_blocks, *axes]`, a convolution always as
            `[num_blocks, channel, tap]` whatever its memory order.
    """

    arrays: Mapping[str, Tensor]

    @property
    def conv_state(self) -> Tensor:
        """`[num_blocks, conv_dim, d_conv - 1]`: all channels that the convolution sees."""
        return self.arrays["conv"]

    @property
    def ssm_state(self) -> Tensor:
        """`[num_blocks, d_inner, d_state]`; RG-LRU has no `d_state`, others have heads first."""
        return self.arrays["ssm"]


@dataclass(frozen=True)
class StateSpec(CacheSpec[StateViews]):
    """A cache whose page is one state; made by the functions below, or from fields of your own."""

    def bind_kv_cache(self, raw: Tensor) -> StateViews:
        """Typed views of a layer's byte pages.

        Args:
            raw: `[num_blocks, 1, 1, page_bytes]` int8, any block stride that keeps alignment.

        Raises:
            ValueError: Another shape, or a base address or block stride that is not aligned.
            TypeError: Another dtype than int8.
        """
        nbytes = self.page(1).nbytes
        expect(raw.dtype == torch.int8, "raw.dtype", torch.int8, raw.dtype, TypeError)
        fits = raw.dim() == 4 and tuple(raw.shape[1:]) == (1, 1, nbytes)
        expect(fits, "raw.shape", ["num_blocks", 1, 1, nbytes], list(raw.shape))
        expect(raw.stride(3) == 1, "raw.stride(3)", "1, a page that is one run", raw.stride(3))
        for name, value in (("stride(0)", raw.stride(0)), ("address", raw.data_ptr())):
            expect(value % ALIGNMENT == 0, f"raw.{name}", f"a multiple of {ALIGNMENT} bytes", value)
        arrays: dict[str, Tensor] = {}
        for segment in self.segments:
            whole, start = segment.whole, self.page(1).offsets()[segment.name]
            data = raw[:, 0, 0, start : start + whole.nbytes].view(whole.dtype)
            data = data.unflatten(1, whole.shape)
            join = 1 + [axis.name for axis in whole.axes].index(segment.join) if segment.join else 1
            for field in segment.fields:
                size = field.shape[join - 1]
                part = data.narrow(join, segment.starts()[field.name], size)
                arrays[field.name] = _channel_first(part, field)
            arrays[segment.name] = _channel_first(data, whole)
        return StateViews(arrays)


def _channel_first(data: Tensor, field: Field) -> Tensor:
    """`[num_blocks, *axes]` with a (tap, channel) pair shown as (channel, tap)."""
    tap_first = field.axes[0].name == "tap"
    return data.transpose(1, 2) if tap_first else data


def _conv(
    name: str, channels: int, taps: int, dtype: torch.dtype, order: str, unit: int, shared: bool
) -> Field:
    axes = (Axis("channel", channels), Axis("tap", taps))
    expect(order in CONV_ORDERS, "conv_order", "'DS' or 'SD'", repr(order))
    shard = Shard("channel", channels, unit=unit, replicate=shared)
    return Field(name, axes if order == "DS" else axes[::-1], dtype, shard)


def mamba1(
    d_inner: int,
    d_state: int,
    d_conv: int,
    *,
    conv_dtype: torch.dtype,
    ssm_dtype: torch.dtype = torch.float32,
    conv_order: str = "DS",
) -> StateSpec:
    """Mamba-1 (Gu and Dao 2023, section 3): conv [d_inner, d_conv - 1], ssm [d_inner, d_state]."""
    conv = _conv("conv.x", d_inner, d_conv - 1, conv_dtype, conv_order, 1, False)
    axes = (Axis("channel", d_inner), Axis("state", d_state))
    ssm = Field("ssm", axes, ssm_dtype, Shard("channel", d_inner))
    return StateSpec("mamba-1", (Segment("conv", (conv,)), Segment("ssm", (ssm,))))


def mamba2(
    num_heads: int,
    head_dim: int,
    d_state: int,
    d_conv: int,
    *,
    n_groups: int = 1,
    conv_dtype: torch.dtype,
    ssm_dtype: torch.dtype = torch.float32,
    conv_order: str = "DS",
) -> StateSpec:
    """Mamba-2 (Dao and Gu 2024, section 7): x, B and C pass the convolution; heads own the state.

    `x` is cut by heads and `B`, `C` by groups, which ranks share when there are fewer groups.
    """
    groups = (n_groups * d_state, d_conv - 1, conv_dtype, conv_order, d_state, True)
    fields = (
        _conv("conv.x", num_heads * head_dim, d_conv - 1, conv_dtype, conv_order, head_dim, False),
        _conv("conv.B", *groups),
        _conv("conv.C", *groups),
    )
    axes = (Axis("head", num_heads), Axis("head_dim", head_dim), Axis("state", d_state))
    ssm = Field("ssm", axes, ssm_dtype, Shard("head", num_heads))
    return StateSpec("mamba-2", (Segment("conv", fields, join="channel"), Segment("ssm", (ssm,))))


def gated_delta_net(
    num_key_heads: int,
    num_value_heads: int,
    key_dim: int,
    value_dim: int,
    d_conv: int,
    *,
    conv_dtype: torch.dtype,
    ssm_dtype: torch.dtype = torch.float32,
    conv_order: str = "DS",
) -> StateSpec:
    """Gated delta net (Yang et al. 2024): q, k, v pass the convolution; ssm [head, key, value]."""
    keys = (num_key_heads * key_dim, d_conv - 1, conv_dtype, conv_order, key_dim, True)
    values = num_value_heads * value_dim
    fields = (
        _conv("conv.q", *keys),
        _conv("conv.k", *keys),
        _conv("conv.v", values, d_conv - 1, conv_dtype, conv_order, value_dim, False),
    )
    axes = (Axis("head", num_value_heads), Axis("key", key_dim), Axis("value", value_dim))
    ssm = Field("ssm", axes, ssm_dtype, Shard("head", num_value_heads))
    spec = (Segment("conv", fields, join="channel"), Segment("ssm", (ssm,)))
    return StateSpec("gated delta net", spec)


def rg_lru(
    num_heads: int,
    head_dim: int,
    d_conv: int,
    *,
    conv_dtype: torch.dtype,
    ssm_dtype: torch.dtype = torch.float32,
    conv_order: str = "DS",
) -> StateSpec:
    """Griffin's recurrent block (De et al. 2024): a convolution, and one number a channel.

    Both are cut by heads, since the gates of a channel are made of all channels of its head.
    """
    width = num_heads * head_dim
    conv = _conv("conv.x", width, d_conv - 1, conv_dtype, conv_order, head_dim, False)
    ssm = Field("ssm", (Axis("channel", width),), ssm_dtype, Shard("channel", width, head_dim))
    return StateSpec("rg-lru", (Segment("conv", (conv,)), Segment("ssm", (ssm,))))


def short_conv(
    channels: int, d_conv: int, *, conv_dtype: torch.dtype, conv_order: str = "DS"
) -> StateSpec:
    """A gated short convolution (LFM2): the last `d_conv - 1` inputs and nothing else."""
    conv = _conv("conv.x", channels, d_conv - 1, conv_dtype, conv_order, 1, False)
    return StateSpec("short convolution", (Segment("conv", (conv,)),))
