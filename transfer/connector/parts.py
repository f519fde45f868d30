"""Parts of messages: what they say of engines, memory, blocks and plans, with bounds on each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from blockstride.transfer.peer_plan import StrategyChoice

RANDOM_BYTES = 16

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=2000)]
Random = Annotated[bytes, Meta(min_length=RANDOM_BYTES, max_length=RANDOM_BYTES)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Ranks = Annotated[int, Meta(ge=1, le=1024)]
Address = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Rate = Annotated[float, Meta(gt=0)]
Blob = Annotated[bytes, Meta(max_length=1 << 20)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message."""


class AxisPart(Part, frozen=True):
    """See `blockstride.layouts.Axis`."""

    name: Name
    extent: Positive
    logical: Annotated[str, Meta(pattern="^[HNC]$")]


class ShardPart(Part, frozen=True):
    """See `blockstride.layouts.Shard`."""

    axis: Name
    extent: Positive
    unit: Positive
    replicate: bool


class FieldPart(Part, frozen=True):
    """See `blockstride.layouts.Field`."""

    name: Name
    axes: Annotated[list[AxisPart], Meta(min_length=1, max_length=8)]
    dtype: Name
    shard: ShardPart | None


class SegmentPart(Part, frozen=True):
    """See `blockstride.layouts.Segment`."""

    name: Name
    fields: Annotated[list[FieldPart], Meta(min_length=1, max_length=32)]
    join: Annotated[str, Meta(max_length=256)]


class SpecPart(Part, frozen=True):
    """See `blockstride.layouts.CacheSpec`."""

    kind: Name
    segments: Annotated[list[SegmentPart], Meta(min_length=1, max_length=32)]
    window: Positive | None


class EnginePart(Part, frozen=True):
    """See `blockstride.transfer.EngineTransferInfo`; `layers` are names and numbers of `specs`."""

    engine_id: Name
    specs: Annotated[list[SpecPart], Meta(min_length=1, max_length=256)]
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


class Region(Part, frozen=True):
    """The storage of one pool.

    Attributes:
        pool: Number of the pool.
        address: Of its first byte.
        nbytes: Its size.
        device: Device number; 0 for process memory.
        kind: NIXL's name of the kind of memory.
    """

    pool: Count
    address: Address
    nbytes: Address
    device: Annotated[int, Meta(ge=0, le=1023)] = 0
    kind: Annotated[str, Meta(pattern="^(DRAM|VRAM)$")] = "DRAM"


Regions = Annotated[list[Region], Meta(max_length=4096)]


class PlanOptions(Part, frozen=True):
    """How a reader plans, for the producer to make the same plan.

    Attributes:
        strategy: Its choice.
        num_tokens: See `plan_transfer`.
        num_states: Likewise.
        cost: Seconds per descriptor, wire rate and convert rate of its cost model.
        cast: Whether it reads other dtypes than its own.
    """

    strategy: StrategyChoice
    num_tokens: Positive
    num_states: Positive
    cost: tuple[Rate, Rate, Rate]
    cast: bool


class Blocks(Part, frozen=True):
    """Block ids of one group; see `blockstride.transfer.BlockIds`."""

    ids: Annotated[list[Count], Meta(max_length=1 << 20)]
    first: Count


Tables = Annotated[list[Blocks], Meta(max_length=4096)]
