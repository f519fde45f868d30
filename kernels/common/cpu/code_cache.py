"""Where machine code of programs is kept: a folder of the user, which may be lost at any time.

A file is named after its program and after all that its code depends on: the CPU, the versions of
the compilers, the source. It begins with a checksum of the rest. What can't be read, written or
trusted is compiled again; nothing here fails.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite
from platformdirs import user_cache_path

from blockstride.kernels.common.cpu.machine_code import host

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows: several processes may compile the same then
    flock = None

VARIABLE = "BLOCKSTRIDE_CACHE_DIR"
"""What names another folder."""

COMMON = Path(__file__).parent
CHECKSUM_BYTES = hashlib.sha256().digest_size
KEPT = 16
"""Versions of a program that are kept: of other sources, CPUs and compilers."""

WAIT_SECONDS = 120.0
"""How long to wait for another process that compiles the same, before doing so too."""


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None where there is no such place."""
    given = os.environ.get(VARIABLE)
    folder = Path(given).absolute() if given else user_cache_path("blockstride", False)
    # a user without a home
    return folder / "programs" if folder.is_absolute() else None


@cache
def digest_of_sources(folder: Path) -> bytes:
    """A hash of the files whose functions may be compiled into a program of a folder."""
    sources = sorted({*COMMON.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest()


@cache
def _toolchain() -> bytes:
    versions = (version("numba"), llvmlite.__version__, platform.python_version())
    return " ".join((*versions, host())).encode()


class CodeFile:
    """The machine code of one program.

    Args:
        folder: Where the source of the program and of its helpers is.
        name: Full name of its function.
    """

    def __init__(self, folder: Path, name: str) -> None:
        digest = hashlib.sha256(digest_of_sources(folder) + _toolchain()).hexdigest()[:32]
        self._name, where = name, cache_folder()
        self.path = None if where is None else where / f"{name}-{digest}.o"

    @property
    def is_there(self) -> bool:
        """Whether there is such a file, damaged or not."""
        return self.path is not None and self.path.is_file()

    def read(self) -> bytes | None:
        """The machine code, if it is there and whole."""
        try:
            content = b"" if self.path is None else self.path.read_bytes()
        except OSError:
            return None
        checksum, code = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        return code if code and hashlib.sha256(code).digest() == checksum else None

    def write(self, code: bytes) -> None:
        """Keep machine code, if that is possible; readers find all of it or nothing."""
        if self.path is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, suffix=".new")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                Path(temporary).replace(self.path)
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        assert self.path is not None
        versions = list(self.path.parent.glob(f"{self._name}-*.o"))
        versions.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        for file in versions[KEPT:]:
            file.unlink(missing_ok=True)

    @contextmanager
    def lock(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[bool]:
        """Have other processes wait while this one compiles the program.

        Args:
            wait_seconds: How long to wait for one that does so now.

        Yields:
            Whether no other process does.
        """
        if self.path is None or flock is None:
            yield True
            return
        lock = self.path.with_suffix(".lock")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = lock.open("w")
        except OSError:
            # nobody can write here, so nobody keeps what they compile
            yield True
            return
        with file:
            is_ours = _acquire(file.fileno(), wait_seconds)
            try:
                yield is_ours
            finally:
                if is_ours:
                    with suppress(OSError):
                        lock.unlink()


def _acquire(file: int, wait_seconds: float) -> bool:
    assert flock is not None
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        except OSError:
            # file systems that know no locks
            return True
        else:
            return True
