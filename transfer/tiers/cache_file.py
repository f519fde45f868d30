"""Cache files: written by all ranks of an engine, read by any rank of any engine."""

from __future__ import annotations

import mmap
import os
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import NoReturn

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_type
from blockstride.transfer.atomic_file import PartialFile
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
    expect_no_failure,
    sizes_to_store,
    writing_ranks,
)


class _OpenFile(StoredCache):
    """What files that are read and files that are written have in common: a descriptor."""

    path: Path
    _shape: FileShape

    @property
    @abstractmethod
    def _descriptor(self) -> int:
        """Of the file; -1 once it is closed."""

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

    @abstractmethod
    def close(self) -> None:
        """Closes the descriptor; twice is no error."""


class CacheFileWriter(_OpenFile):
    """A cache file in the making.

    It has a temporary name of its own until `seal` has found that every rank wrote its part.
    Several processes may write one file, a rank each: one makes it, the others `join` it with the
    same arguments and its `save_id`, and one seals it when all others have closed it. Two saves of
    one path never meet: the one that is sealed last stays. A process that dies leaves a file that
    nobody takes for a whole one, and that the next writer in the folder removes.

    Args:
        path: Name of the file when it is whole.
        engine: The engine that saves.
        num_tokens: Tokens of the sequence.
        num_states: States that each group without tokens keeps.
        start: Tokens before those that are stored, the first block whole.
        tag: At most 4 MiB for the caller, such as the tokens.
        save_id: What the writers of this save have in common, and no other save has; "" draws one.
        join: Whether another process has made the file.

    Attributes:
        save_id: What others join it by.

    Raises:
        ValueError: No token, a tag that is too long, an engine without a fingerprint of
            its model, or a file to join that is being sealed.
        TypeError: An argument of another type.
        OSError: The file can't be made, or the disk has no room for all of it; then none is left.
    """

    def __init__(
        self,
        path: Path | str,
        engine: EngineTransferInfo,
        num_tokens: int,
        num_states: int = 1,
        *,
        start: int = 0,
        tag: bytes = b"",
        save_id: str = "",
        join: bool = False,
    ) -> None:
        expect_type(path, "path", Path | str)
        expect_type(tag, "tag", bytes)
        expect_type(save_id, "save_id", str)
        expect(bool(save_id) or not join, "save_id", "that of the file to join", "none")
        sizes = sizes_to_store(engine, num_tokens, num_states, start)
        canonical = canonical_engine(engine, *sizes)
        super().__init__(canonical, *sizes)
        self.path, self.save_id = Path(path), save_id or token_hex(8)
        self._header = blank_header(engine, canonical, *sizes, tag)
        self._shape = shape_of(self._header, canonical)
        self._ranks = writing_ranks(canonical, engine)
        self._joined, self._failed = join, False
        self._file = PartialFile(self.path, self.save_id, join=join)
        if join:
            size = os.fstat(self._descriptor).st_size
            if size != self._shape.nbytes:
                self.close()
                expect(False, "file", f"one of {self._shape.nbytes} bytes", f"one of {size}")
            return
        try:
            # a full disk is found here, and not by a rank in the middle of its part
            os.posix_fallocate(self._descriptor, 0, self._shape.nbytes)
        except OSError as error:
            self.abandon()
            error.filename = str(self.path)
            raise

    def __enter__(self) -> CacheFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or self._joined:
            self.close()
        else:
            self.abandon()

    @property
    def _descriptor(self) -> int:
        return self._file.descriptor

    def expect_readable(self) -> None:
        """Raises `ValueError`: nobody reads a file that is not whole."""
        expect(False, "file", "a whole one", f"{self._file.partial}, which is being written")

    @contextmanager
    def writing(self, rank: int) -> Iterator[None]:
        """Held while a rank writes its part, of which the file takes note at the end.

        Raises:
            ValueError: The file is closed or whole, or NIXL has failed in the middle of a part and
                may still be at work.
        """
        self._expect_open()
        sealed = any(os.pread(self._descriptor, PREAMBLE.size, 0))
        expect(not sealed, "file", "one in the making", f"{self.path}, which is whole")
        expect_no_failure(self._failed)
        os.pwrite(self._descriptor, b"\0", self._shape.marks + rank)
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        os.fdatasync(self._descriptor)
        os.pwrite(self._descriptor, b"\1", self._shape.marks + rank)

    def seal(self) -> None:
        """Makes the file whole, gives it its name, and closes it: nobody can write to it any more.

        Raises:
            ValueError: A rank has not written its part, another process has the file open, or it is
                closed.
            OSError: The system refuses.
        """
        self._expect_open()
        self._file.keep_others_out()
        expect_no_failure(self._failed)
        marks = os.pread(self._descriptor, self._header.num_ranks, self._shape.marks)
        expect_all_written(rank for rank in self._ranks if not marks[rank])
        with mmap.mmap(self._descriptor, self._shape.nbytes, access=mmap.ACCESS_READ) as memory:
            checksums = [self._checksum(memory, block) for block in self._shape.blocks]
        # the data before the preamble that vouches for it, and both before the name
        os.fsync(self._descriptor)
        os.pwrite(self._descriptor, encode(self._header, checksums), 0)
        self._file.publish()

    def close(self) -> None:
        """Closes the file, and leaves it to those who join it; twice is no error."""
        self._file.close()

    def abandon(self) -> None:
        """Removes what has been written."""
        self._file.abandon()


class CacheFile(_OpenFile):
    """A whole cache file.

    Args:
        path: Its name.

    Attributes:
        tag: What the writer wanted to be known.

    Raises:
        CacheFileError: A torn file, one of another version, or something else.
        TypeError: A path of another type.
        OSError: It can't be opened.
    """

    def __init__(self, path: Path | str) -> None:
        expect_type(path, "path", Path | str)
        self.path = Path(path)
        self._open = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            preamble = os.pread(self._descriptor, PREAMBLE.size, 0)
            body = os.pread(self._descriptor, header_bytes(preamble), PREAMBLE.size)
            header, engine = decode(preamble, body)
            super().__init__(engine, header.num_tokens, header.num_states, header.start)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _descriptor(self) -> int:
        return self._open

    def close(self) -> None:
        """Closes the descriptor; twice is no error."""
        descriptor, self._open = self._open, -1
        if descriptor >= 0:
            os.close(descriptor)

    def writing(self, rank: int) -> NoReturn:
        """Raises `ValueError`: a whole file is never written."""
        raise ValueError(f"file: expected one in the making, got {self.path}, which is whole")

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
