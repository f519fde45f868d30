"""Descriptions: an engine and its blocks as messages, and back, with all checked for planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Annotated, Literal, NoReturn, cast

import msgspec
import torch
from msgspec import Meta

from blockstride.checks import expect
from blockstride.dtypes import DTYPES, dtype_name
from blockstride.layouts import (
    Axis,
    CacheSpec,
    Field,
    Interval,
    KVCacheLayout,
    PoolPolicy,
    Segment,
    Shard,
)
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.nixl import Memory
from blockstride.transfer.request import BlockIds

MAX_ADDRESS = 1 << 63
MAX_POOL_BYTES = 1 << 48
MAX_PERIOD = 1 << 22
"""Most tokens after which the pattern of two block sizes may repeat: plans grow with it."""

MAX_RANKS = 1024
"""Most ranks of an engine: each is planned for."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Ranks = Annotated[int, Meta(ge=1, le=1024)]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message or a part of one; unknown fields are refused."""


class AxisDescription(Strict, frozen=True):
    """See `blockstride.layouts.Axis`."""

    name: Name
    extent: Positive
    logical: Annotated[str, Meta(pattern="^[HNC]$")]


class ShardDescription(Strict, frozen=True):
    """See `blockstride.layouts.Shard`."""

    axis: Name
    extent: Positive
    unit: Positive
    replicate: bool


class FieldDescription(Strict, frozen=True):
    """See `blockstride.layouts.Field`."""

    name: Name
    axes: Annotated[list[AxisDescription], Meta(min_length=1, max_length=8)]
    dtype: Name
    shard: ShardDescription | None


class SegmentDescription(Strict, frozen=True):
    """See `blockstride.layouts.Segment`."""

    name: Name
    fields: Annotated[list[FieldDescription], Meta(min_length=1, max_length=32)]
    join: Annotated[str, Meta(max_length=256)]


class SpecDescription(Strict, frozen=True):
    """See `blockstride.layouts.CacheSpec`."""

    kind: Name
    segments: Annotated[list[SegmentDescription], Meta(min_length=1, max_length=32)]
    window: Positive | None


class EngineDescription(Strict, frozen=True):
    """See `blockstride.transfer.EngineTransferInfo`; `layers` are names and numbers of `specs`."""

    engine_id: Name
    specs: Annotated[list[SpecDescription], Meta(min_length=1, max_length=256)]
    layers: Annotated[list[tuple[Name, Count]], Meta(min_length=1, max_length=4096)]
    layout: Annotated[str, Meta(min_length=5, max_length=5)]
    policy: Annotated[str, Meta(pattern="^(unified|split)$")]
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    num_blocks: Annotated[list[Positive], Meta(min_length=1, max_length=4096)]
    kernel_block_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None
    tp_size: Ranks
    cp_size: Ranks
    cp_interleave: Annotated[int, Meta(ge=1, le=1 << 20)]
    stages: Annotated[list[tuple[Count, Count]], Meta(max_length=1024)]
    model_fingerprint: Name


class Blocks(Strict, frozen=True):
    """Block ids of one group; see `blockstride.transfer.BlockIds`."""

    ids: Annotated[list[Count], Meta(max_length=1 << 20)]
    first: Count
    present: Count


Tables = Annotated[list[Blocks], Meta(max_length=4096)]


@dataclass(frozen=True)
class DescribedSpec(CacheSpec[NoReturn]):
    """What a layer of another engine caches: planned with, never bound."""

    def bind_kv_cache(self, raw: torch.Tensor) -> NoReturn:
        """Raises `ValueError`: the memory is another engine's."""
        raise ValueError(f"spec: expected one of this engine to bind, got a description: {self}")


def describe(info: EngineTransferInfo) -> EngineDescription:
    """The description of an engine that its peers get."""
    specs = list(dict.fromkeys(info.specs.values()))
    number = {spec: i for i, spec in enumerate(specs)}
    return EngineDescription(
        info.engine_id,
        [_describe_spec(spec) for spec in specs],
        [(name, number[spec]) for name, spec in info.specs.items()],
        info.layout.order,
        info.policy,
        info.block_size,
        list(info.num_blocks),
        info.kernel_block_size,
        info.tp_size,
        info.cp_size,
        info.cp_interleave,
        [(stage.start, stage.stop) for stage in info.stages],
        info.model_fingerprint,
    )


def _describe_spec(spec: CacheSpec) -> SpecDescription:
    segments = [
        SegmentDescription(segment.name, [_describe_field(f) for f in segment.fields], segment.join)
        for segment in spec.segments
    ]
    return SpecDescription(spec.kind, segments, spec.window)


def _describe_field(field: Field) -> FieldDescription:
    axes = [AxisDescription(axis.name, axis.extent, axis.logical) for axis in field.axes]
    cut = field.shard
    shard = ShardDescription(cut.axis, cut.extent, cut.unit, cut.replicate) if cut else None
    return FieldDescription(field.name, axes, dtype_name(field.dtype), shard)


def engine_of(described: EngineDescription, peer: EngineTransferInfo) -> EngineTransferInfo:
    """The engine that a message describes.

    Args:
        described: The message, of which nothing is believed.
        peer: The engine that is to plan with it.

    Raises:
        ValueError: A description that contradicts itself, or sizes that no plan could be made for.
        TypeError: A dtype that a cache can't hold.
    """
    info = described_engine(described)
    expect_plannable(info, peer)
    return info


def described_engine(described: EngineDescription) -> EngineTransferInfo:
    """The engine of a description, without the checks that planning needs.

    Raises:
        ValueError: A description that contradicts itself.
        TypeError: A dtype that a cache can't hold.
    """
    specs = [_spec(spec) for spec in described.specs]
    names = [name for name, _ in described.layers]
    expect(len(set(names)) == len(names), "layers", "distinct names", names)
    highest = max(number for _, number in described.layers)
    expect(highest < len(specs), "layers", f"numbers of {len(specs)} specs", highest)
    return EngineTransferInfo(
        described.engine_id,
        {name: specs[number] for name, number in described.layers},
        KVCacheLayout(described.layout),
        cast(PoolPolicy, described.policy),
        described.block_size,
        tuple(described.num_blocks),
        kernel_block_size=described.kernel_block_size,
        tp_size=described.tp_size,
        cp_size=described.cp_size,
        cp_interleave=described.cp_interleave,
        stages=tuple(Interval(*stage) for stage in described.stages),
        model_fingerprint=described.model_fingerprint,
    )


def expect_plannable(info: EngineTransferInfo, peer: EngineTransferInfo) -> None:
    """Raises `ValueError` where an engine has too many ranks for a plan, or blocks meet too rarely.

    Args:
        info: The engine that is not believed.
        peer: The one that is to plan with it.
    """
    ranks, name = info.world_size, f"ranks of {info.engine_id}"
    expect(ranks <= MAX_RANKS, name, f"at most {MAX_RANKS}", ranks)
    period = lcm(info.block_size * info.cp_size, peer.block_size * peer.cp_size)
    name = f"block sizes of {info.engine_id} and {peer.engine_id}"
    expect(period <= MAX_PERIOD, name, f"ones that meet within {MAX_PERIOD} tokens", period)


def _spec(described: SpecDescription) -> DescribedSpec:
    segments = tuple(
        Segment(segment.name, tuple(_field(f) for f in segment.fields), segment.join)
        for segment in described.segments
    )
    return DescribedSpec(described.kind, segments, described.window)


def _field(described: FieldDescription) -> Field:
    expect(
        described.dtype in DTYPES, f"{described.name}.dtype", f"one of {[*DTYPES]}", described.dtype
    )
    axes = tuple(
        Axis(axis.name, axis.extent, cast(Literal["H", "N", "C"], axis.logical))
        for axis in described.axes
    )
    cut = described.shard
    shard = Shard(cut.axis, cut.extent, cut.unit, cut.replicate) if cut else None
    return Field(described.name, axes, DTYPES[described.dtype], shard)


def check_memory(info: EngineTransferInfo, rank: int, memory: Memory) -> None:
    """Checks what a peer says of the memory of a rank.

    Raises:
        ValueError: Other pools than the rank has, other sizes than its engine implies, addresses
            beyond 63 bits, or pools that overlap.
    """
    name = f"memory of {info.engine_id} rank {rank}"
    expected, sizes = dict(info.rank_cache(rank).pool_bytes), dict(memory.sizes)
    alike = sizes == expected and memory.addresses.keys() == expected.keys()
    expect(alike, name, f"pools of {expected} bytes", sizes)
    largest = max(sizes.values(), default=0)
    expect(largest < MAX_POOL_BYTES, name, f"fewer than {MAX_POOL_BYTES} bytes", largest)
    expect(memory.kind != "FILE", name, "memory", "a file")
    end = 1
    for pool, address in sorted(memory.addresses.items(), key=lambda item: item[1]):
        stop = address + sizes[pool]
        apart = address >= end and stop < MAX_ADDRESS
        more = f"separate ones below {MAX_ADDRESS:#x}"
        expect(apart, name, more, f"{address:#x} to {stop:#x} after {end:#x}")
        end = stop


def tables_of(parts: Sequence[Blocks]) -> list[BlockIds]:
    """Block ids from a message."""
    return [BlockIds(described.ids, described.first, described.present) for described in parts]


def blocks_of(tables: Sequence[BlockIds]) -> list[Blocks]:
    """Block ids as a message."""
    return [Blocks(blocks.ids.tolist(), blocks.first, blocks.present) for blocks in tables]
