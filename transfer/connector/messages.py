"""Messages between connectors: all that crosses the wire, sealed, with the bounds of every field.

Sessions and sequence numbers make replays worthless: a session begins with random numbers of both
sides, and each of its messages may come once.

A frame is a magic word, the version, a digest under the shared key, and msgpack. Nothing is decoded
before version and digest are right; then msgspec checks the type and the bounds of every field and
refuses fields it doesn't know.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from blockstride.transfer.connector.description import (
    Count,
    EngineDescription,
    Name,
    Positive,
    Strict,
    Tables,
)
from blockstride.transfer.errors import Kind, ProtocolError
from blockstride.transfer.nixl import Memory
from blockstride.transfer.peer_plan import StrategyChoice

MAGIC, VERSION = b"BSTR", 4
DIGEST_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + DIGEST_BYTES
RANDOM_BYTES = 16

Text = Annotated[str, Meta(max_length=2000)]
Random = Annotated[bytes, Meta(min_length=RANDOM_BYTES, max_length=RANDOM_BYTES)]
Rate = Annotated[float, Meta(gt=0)]
Blob = Annotated[bytes, Meta(max_length=1 << 20)]


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
        memory: Where its pools are, or the staging area before a cast.
        metadata: Of its agent, which has registered them.
    """

    memory: Memory
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
    memory: Memory
    areas: Annotated[list[Memory], Meta(max_length=64)]
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

Message = TypeVar("Message")

_ENCODER = msgspec.msgpack.Encoder()
_TO_PRODUCER: msgspec.msgpack.Decoder[ToProducer] = msgspec.msgpack.Decoder(ToProducer)
_TO_READER: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)


def seal(message: ToProducer | ToReader, key: bytes) -> bytes:
    """The frame of a message."""
    payload = _ENCODER.encode(message)
    head = MAGIC + VERSION.to_bytes(2, "big")
    return head + _digest(head, payload, key) + payload


def unseal_request(frame: bytes, key: bytes) -> ToProducer:
    """A message to a producer.

    Raises:
        ProtocolError: Bytes that are none, of another version, damaged, or sealed with another key.
    """
    return _unseal(frame, key, _TO_PRODUCER)


def unseal_answer(frame: bytes, key: bytes) -> ToReader:
    """A message to a reader.

    Raises:
        ProtocolError: As `unseal_request`.
    """
    return _unseal(frame, key, _TO_READER)


def _unseal(frame: bytes, key: bytes, decoder: msgspec.msgpack.Decoder[Message]) -> Message:
    head, digest, payload = frame[:6], frame[6:HEADER_BYTES], frame[HEADER_BYTES:]
    if head[:4] != MAGIC:
        raise ProtocolError(f"message: expected one that begins with {MAGIC!r}, got {head[:4]!r}")
    version = int.from_bytes(head[4:], "big")
    if version != VERSION:
        raise ProtocolError(f"protocol version: expected {VERSION}, got {version}")
    if not hmac.compare_digest(digest, _digest(head, payload, key)):
        raise ProtocolError("message: expected a digest that fits its bytes and key, got another")
    try:
        return decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"message: expected one of a known form, got {error}") from error


def _digest(head: bytes, payload: bytes, key: bytes) -> bytes:
    digest = blake2b(head, digest_size=DIGEST_BYTES, key=key)
    digest.update(payload)
    return digest.digest()
