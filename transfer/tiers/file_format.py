"""The format of a cache file: what it begins with, and what makes it whole.

A file is a preamble (magic word, version, size and checksum of the header), the header, and the
blocks of a stored cache. The header says everything that planning needs, and the CRC-32 of every
block. The preamble is written last and the file gets its name after that, so whatever was torn
lacks one of them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from blockstride.checks import expect
from blockstride.transfer.connector.description import describe, described_engine
from blockstride.transfer.connector.messages import Count, EngineDescription, Positive, Strict
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.tiers.stored_cache import arrange, canonical_engine

MAGIC, VERSION = b"BSTRIDE\0", 3
PREAMBLE = struct.Struct("<8sIII")
"""Magic word, version, bytes of the header, CRC-32 of the header."""

MAX_HEADER_BYTES = 1 << 26
MAX_TAG_BYTES = 1 << 22
CRC_BYTES = 4
ALIGNMENT = 4096


class CacheFileError(RuntimeError):
    """A file that is no whole cache file of this version; the message names it and says why."""


class Header(Strict, frozen=True):
    """What a file says of itself.

    Attributes:
        engine: The canonical engine.
        num_ranks: Ranks of the engine that saved.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.
        start: Tokens before those that are stored.
        tag: What the caller wants to know of the sequence; nothing here reads it.
        checksums: CRC-32 of each block, pool after pool, 4 bytes each, the lowest first.
    """

    engine: EngineDescription
    num_ranks: Positive
    num_tokens: Positive
    num_states: Count
    start: Count
    tag: Annotated[bytes, Meta(max_length=MAX_TAG_BYTES)]
    checksums: Annotated[bytes, Meta(max_length=MAX_HEADER_BYTES)]


class BlockRange(NamedTuple):
    """A block in the file: of which pool, its number there, its first byte and its size."""

    pool: int
    number: int
    start: int
    nbytes: int


class FileShape(NamedTuple):
    """Where everything is.

    Attributes:
        first: Pool -> offset of its null block.
        nbytes: Size of the file.
        marks: Offset of one byte for each rank that saves; without meaning once the file is whole.
        blocks: All blocks, in the order of their checksums.
    """

    first: dict[int, int]
    nbytes: int
    marks: int
    blocks: list[BlockRange]


def blank_header(
    engine: EngineTransferInfo,
    canonical: EngineTransferInfo,
    tokens: int,
    states: int,
    start: int,
    tag: bytes,
) -> Header:
    """The header of a file before its checksums are known, which is as long as the final one."""
    expect(len(tag) <= MAX_TAG_BYTES, "tag", f"at most {MAX_TAG_BYTES} bytes", len(tag))
    num_blocks = sum(count - 1 for count in canonical.num_blocks)
    blank = bytes(CRC_BYTES * num_blocks)
    return Header(describe(canonical), engine.world_size, tokens, states, start, tag, blank)


def shape_of(header: Header, engine: EngineTransferInfo) -> FileShape:
    """Where everything is in a file with this header, of the canonical engine that it describes."""
    marks = PREAMBLE.size + len(msgspec.msgpack.encode(header))
    start = -(-(marks + header.num_ranks) // ALIGNMENT) * ALIGNMENT
    first, end = arrange(engine, start)
    blocks = [
        BlockRange(pool, number, first[pool] + number * size, size)
        for pool, size in enumerate(engine.block_bytes)
        for number in range(1, engine.num_blocks[pool])
    ]
    return FileShape(first, end, marks, blocks)


def encode(header: Header, checksums: Sequence[int]) -> bytes:
    """Preamble and header of a whole file."""
    packed = b"".join(crc.to_bytes(CRC_BYTES, "little") for crc in checksums)
    body = msgspec.msgpack.encode(msgspec.structs.replace(header, checksums=packed))
    return PREAMBLE.pack(MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def header_bytes(preamble: bytes) -> int:
    """Bytes of the header that follows a preamble.

    Raises:
        CacheFileError: Another file's preamble, one of another version, or none yet.
    """
    if len(preamble) < PREAMBLE.size:
        raise CacheFileError(f"expected a preamble of {PREAMBLE.size} bytes, got {len(preamble)}")
    magic, version, size, _ = PREAMBLE.unpack(preamble)
    if magic != MAGIC:
        torn = " (it was never finished)" if not any(preamble) else ""
        raise CacheFileError(f"expected the magic word {MAGIC!r}, got {magic!r}{torn}")
    if version != VERSION:
        raise CacheFileError(f"expected version {VERSION}, got {version}")
    if size > MAX_HEADER_BYTES:
        raise CacheFileError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")
    return size


def decode(preamble: bytes, body: bytes) -> tuple[Header, EngineTransferInfo]:
    """The header of a file and the canonical engine that it describes, of which nothing is trusted.

    Raises:
        CacheFileError: A header that is torn, or that no writer of this version would write.
    """
    *_, size, crc = PREAMBLE.unpack(preamble)
    if len(body) != size or zlib.crc32(body) != crc:
        raise CacheFileError("expected the header that the preamble tells of, got a torn one")
    try:
        header = msgspec.msgpack.decode(body, type=Header)
        engine = described_engine(header.engine)
        canonical = canonical_engine(engine, header.num_tokens, header.num_states, header.start)
        alike = describe(canonical) == header.engine
        expect(alike, "engine", "one of one rank with as many blocks as it needs", "another")
        num_blocks = sum(count - 1 for count in canonical.num_blocks)
        wanted = f"{CRC_BYTES * num_blocks} bytes"
        got = len(header.checksums)
        expect(got == CRC_BYTES * num_blocks, "checksums", wanted, got)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise CacheFileError(f"header: {error}") from error
    return header, canonical
