"""The seal: what a frame carries beside its message, and what is refused before it is decoded.

A frame is a magic word, the version, a digest under the shared key, and msgpack. Nothing is decoded
before version and digest are right; then msgspec checks the type and the bounds of every field and
refuses fields it doesn't know.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TypeVar

import msgspec

from blockstride.transfer.connector.messages import ToProducer, ToReader
from blockstride.transfer.errors import ProtocolError

MAGIC, VERSION = b"BSTR", 2
DIGEST_BYTES = 16
HEADER_BYTES = len(MAGIC) + 2 + DIGEST_BYTES

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
