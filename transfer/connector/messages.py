"""Messages between connectors: all that crosses the wire, with the type and bounds of every field.

Sessions and sequence numbers make replays worthless: a session begins with random numbers of both
sides, and each of its messages may come once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from blockstride.transfer.errors import Kind
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


class Region(Strict, frozen=True):
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


class PlanOptions(Strict, frozen=True):
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


class Blocks(Strict, frozen=True):
    """Block ids of one group; see `blockstride.transfer.BlockIds`."""

    ids: Annotated[list[Count], Meta(max_length=1 << 20)]
    first: Count


Tables = Annotated[list[Blocks], Meta(max_length=4096)]

NOBODY = bytes(RANDOM_BYTES)
"""The session of an answer to something that can't be read."""


class Hello(Strict, frozen=True, tag=True):
    """A reader asks for a session; `nonce` must come back."""

    nonce: Random


class Challenge(Strict, frozen=True, tag=True):
    """The producer's half of a new session."""

    nonce: Random
    session: Random


class InSession(Strict, frozen=True):
    """A message of a session: a reader numbers its own in order, an answer has the same number."""

    session: Random
    sequence: Positive


class Introduction(InSession, frozen=True, tag=True):
    """Who the reader is."""

    engine: EngineDescription
    rank: Count
    options: PlanOptions


class PushTarget(Strict, frozen=True):
    """Memory of a reader to write to.

    Attributes:
        regions: Where its pools are, or the staging area before a cast.
        metadata: Of its agent, which has registered them.
    """

    regions: Regions
    metadata: Blob


class Claim(InSession, frozen=True, tag=True):
    """A reader is about to read a request, or asks for it to be written.

    Attributes:
        request_id: Which.
        num_tokens: Tokens that it expects.
        wanted: Blocks that it fills.
        push: Where to write them, or None when it reads by itself.
    """

    request_id: Name
    num_tokens: Count
    wanted: Tables
    push: PushTarget | None = None


class Renew(InSession, frozen=True, tag=True):
    """A reader is alive, and still reads these (request, epoch) pairs."""

    leases: Annotated[list[tuple[Name, Count]], Meta(max_length=1 << 16)]


class Finish(InSession, frozen=True, tag=True):
    """A reader has read a request, and asks whether its lease held all along."""

    request_id: Name
    epoch: Count


class Stop(InSession, frozen=True, tag=True):
    """A reader gives a request up: it reads no more, and nothing more is to be written to it.

    Attributes:
        request_id: Which.
        epoch: Of the lease that was granted; None when no grant has come.
    """

    request_id: Name
    epoch: Count | None


class Goodbye(InSession, frozen=True, tag=True):
    """A reader ends its session."""


class Welcome(InSession, frozen=True, tag=True):
    """Who the producer is, where its pools are, and its staging areas, one list for each route."""

    engine: EngineDescription
    rank: Count
    metadata: Blob
    regions: Regions
    areas: Annotated[list[Regions], Meta(max_length=64)]
    lease_seconds: Rate


class Grant(InSession, frozen=True, tag=True):
    """The blocks of a request, held under an epoch; after a claim to push, they are written."""

    epoch: Count
    tables: Tables


class Renewed(InSession, frozen=True, tag=True):
    """Requests among those renewed that are not held any more."""

    lost: Annotated[list[Name], Meta(max_length=1 << 16)]


class Done(InSession, frozen=True, tag=True):
    """Yes: the lease held (`Finish`), nothing more is written (`Stop`), the session has ended."""


class Refusal(InSession, frozen=True, tag=True):
    """No, and why; the kind of the producer's error, or `session` where the session is over."""

    reason: Text
    kind: Kind | Literal["session"] = "refused"


ToProducer = Hello | Introduction | Claim | Renew | Finish | Stop | Goodbye
ToReader = Challenge | Welcome | Grant | Renewed | Done | Refusal
