"""Cache files: written by all ranks of an engine, read by any rank of any engine."""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path
from types import TracebackType

from blockstride.kernels.checks import expect
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.tiers.file_format import (
    CRC_BYTES,
    PREAMBLE,
    BlockRange,
    CacheFileError,
    FileShape,
    blank_header,
    decode,
    encode,
    header_bytes,
    shape_of,
)
from blockstride.transfer.tiers.stored_cache import (
    Place,
    StoredCache,
    canonical_engine,
    expect_all_written,
    writing_ranks,
)

PARTIAL = ".partial"
"""What the name of a file ends with until it is whole."""


class _OpenFile(StoredCache):
    """What files that are read and files that are written have in common: a descriptor."""

    path: Path
    _shape: FileShape
    _descriptor: int = -1

    @property
    def place(self) -> Place:
        """Where its bytes are.

        Raises:
            ValueError: It is closed.
        """
        self._expect_open()
        shape = self._shape
        return Place("FILE", "POSIX", self._descriptor, shape.first, 0, shape.nbytes)

    def _expect_open(self) -> None:
        expect(self._descriptor >= 0, "file", "an open one", f"{self.path}, closed")

    def _checksum(self, memory: mmap.mmap, block: BlockRange) -> int:
        with memoryview(memory) as whole, whole[block.start : block.start + block.nbytes] as part:
            return zlib.crc32(part)

    def close(self) -> None:
        """Closes the descriptor; twice is no error."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class CacheFileWriter(_OpenFile):
    """A cache file in the making.

    Its name ends in `.partial` until `seal` has found that every rank wrote its part. Several
    processes may write one file, a rank each: one makes it, the others `join` it with the same
    arguments, and one seals it when all are done. A process that dies leaves a file that nobody
    takes for a whole one.

    Args:
        path: Name of the file when it is whole.
        engine: The engine that saves.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.
        tag: At most 64 KiB for the caller, such as a digest of the tokens.
        join: Whether another process has made the file.

    Raises:
        ValueError: No token, no state, or a tag that is too long.
        OSError: The file can't be made, or the disk has no room for all of it; then none is left.
    """

    def __init__(
        self,
        path: Path | str,
        engine: EngineTransferInfo,
        num_tokens: int,
        num_states: int = 1,
        *,
        tag: bytes = b"",
        join: bool = False,
    ) -> None:
        canonical = canonical_engine(engine, num_tokens, num_states)
        super().__init__(canonical, num_tokens, num_states)
        self.path = Path(path)
        self._header = blank_header(engine, canonical, num_tokens, num_states, tag)
        self._shape = shape_of(self._header, canonical)
        self._ranks = writing_ranks(canonical, engine)
        if join:
            self._descriptor = os.open(self._partial, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(self._descriptor).st_size
            if size != self._shape.nbytes:
                self.close()
                expect(False, "file", f"one of {self._shape.nbytes} bytes", f"one of {size}")
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self._partial, flags, 0o644)
        try:
            # a full disk is found here, and not by a rank in the middle of its part
            os.posix_fallocate(self._descriptor, 0, self._shape.nbytes)
        except OSError as error:
            self.abandon()
            error.filename = str(self.path)
            raise

    def __enter__(self) -> CacheFileWriter:
        return self

    @property
    def _partial(self) -> Path:
        return self.path.with_name(self.path.name + PARTIAL)

    def expect_writable(self) -> None:
        """A rank may write until the file is whole."""

    def expect_readable(self) -> None:
        """Raises `ValueError`: nobody reads a file that is not whole."""
        expect(False, "file", "a whole one", f"{self._partial}, which is being written")

    def mark_written(self, rank: int) -> None:
        """Takes note, in the file, that a rank has written its part."""
        os.fdatasync(self._descriptor)
        os.pwrite(self._descriptor, b"\1", self._shape.marks + rank)

    def seal(self) -> None:
        """Makes the file whole and gives it its name.

        Raises:
            ValueError: A rank has not written its part, or the file is closed.
            OSError: The system refuses.
        """
        self._expect_open()
        marks = os.pread(self._descriptor, self._header.num_ranks, self._shape.marks)
        expect_all_written(rank for rank in self._ranks if not marks[rank])
        with mmap.mmap(self._descriptor, self._shape.nbytes, access=mmap.ACCESS_READ) as memory:
            checksums = [self._checksum(memory, block) for block in self._shape.blocks]
        # the data before the preamble that vouches for it, and both before the name
        os.fsync(self._descriptor)
        os.pwrite(self._descriptor, encode(self._header, checksums), 0)
        os.fsync(self._descriptor)
        os.replace(self._partial, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.close()

    def abandon(self) -> None:
        """Removes what has been written."""
        self.close()
        self._partial.unlink(missing_ok=True)


class CacheFile(_OpenFile):
    """A whole cache file.

    Args:
        path: Its name.

    Attributes:
        tag: What the writer wanted to be known.

    Raises:
        CacheFileError: A torn file, one of another version, or something else.
        OSError: It can't be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            preamble = os.pread(self._descriptor, PREAMBLE.size, 0)
            body = os.pread(self._descriptor, header_bytes(preamble), PREAMBLE.size)
            header, engine = decode(preamble, body)
            super().__init__(engine, header.num_tokens, header.num_states)
            self._shape = shape_of(header, engine)
            size = os.fstat(self._descriptor).st_size
            if size != self._shape.nbytes:
                raise CacheFileError(f"expected {self._shape.nbytes} bytes, got {size}")
        except CacheFileError as error:
            self.close()
            raise CacheFileError(f"{self.path}: {error}") from error
        self.tag = header.tag
        self._checksums = header.checksums
        self._is_verified = False

    def __enter__(self) -> CacheFile:
        return self

    def expect_writable(self) -> None:
        """Raises `ValueError`: a whole file is never written."""
        expect(False, "file", "one in the making", f"{self.path}, which is whole")

    def mark_written(self, rank: int) -> None:
        """Cannot happen: a whole file is never written."""
        raise AssertionError(f"rank {rank} wrote {self.path}")

    def expect_readable(self) -> None:
        """Compares every block with its checksum, once, before the first byte is handed out.

        Raises:
            CacheFileError: A block that is not what was written.
            ValueError: The file is closed.
        """
        self._expect_open()
        if self._is_verified:
            return
        with mmap.mmap(self._descriptor, self._shape.nbytes, access=mmap.ACCESS_READ) as memory:
            for i, block in enumerate(self._shape.blocks):
                stored = self._checksums[CRC_BYTES * i : CRC_BYTES * (i + 1)]
                if self._checksum(memory, block) != int.from_bytes(stored, "little"):
                    where = f"block {block.number} of group {block.pool}"
                    raise CacheFileError(
                        f"{self.path}: expected {where} as written, got other bytes"
                    )
        self._is_verified = True
