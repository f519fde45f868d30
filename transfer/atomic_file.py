"""Files that appear whole: written under a name of their own, synced, then renamed.

What is promised: whoever opens the name finds one writer's whole content, or none, whenever a
process dies; once a call has returned, a power failure doesn't change that either. Of several
writers the last rename wins.

Each save has a temporary name of its own beside the file, and its writers hold a shared lock on it
as long as they have it open. So a temporary file that nobody holds belongs to a process that died,
and the next writer in the folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from time import time

from blockstride.checks import expect

PARTIAL = re.compile(r".+\.[0-9a-f]{16}\.partial")
"""Temporary names."""

STALE_SECONDS = 60.0
"""A file is younger than this while it has been made and is not locked yet."""

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
"""What file systems without locks say: files get their names whole there too, and stale ones stay.
"""


class PartialFile:
    """A file that has not got its name yet.

    Args:
        path: Its name once it is whole.
        save_id: What the writers of this file have in common, and no other save has; "" draws one.
        join: Whether another writer has made it.

    Attributes:
        path: Its name once it is whole.
        partial: Its name until then.
        descriptor: For reading and writing; -1 once it is closed.

    Raises:
        FileExistsError: A save of that id has been begun.
        FileNotFoundError: None was begun that could be joined.
        ValueError: It is being made whole.
    """

    def __init__(self, path: Path, save_id: str = "", *, join: bool = False) -> None:
        token = blake2b(save_id.encode(), digest_size=8).hexdigest() if save_id else token_hex(8)
        self.path, self.partial = path, path.with_name(f"{path.name}.{token}.partial")
        self.descriptor = -1
        if not join:
            remove_stale(path.parent)
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if join else os.O_CREAT | os.O_EXCL)
        self.descriptor = os.open(self.partial, flags, 0o666)
        is_shared = _lock(self.descriptor, fcntl.LOCK_SH)
        if not (is_shared and self._has_its_name()):
            self.close()
            expect(is_shared, "file", "one in the making", f"{path}, which is being made whole")
            raise FileNotFoundError(errno.ENOENT, "it has just been removed", str(self.partial))

    def _has_its_name(self) -> bool:
        """Whether the temporary name still means this file."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.partial))
        return False

    def keep_others_out(self) -> None:
        """Makes sure that nobody else has it open for writing, and that nobody opens it again.

        Raises:
            ValueError: Somebody has.
        """
        alone = _lock(self.descriptor, fcntl.LOCK_EX) and self._has_its_name()
        if not alone:  # a change of locks that fails has given up the one that was held
            _lock(self.descriptor, fcntl.LOCK_SH)
        expect(alone, "file", "every other writer to have closed it", f"{self.partial}, still open")

    def publish(self) -> None:
        """Gives the file its name, and closes it."""
        os.fsync(self.descriptor)
        os.replace(self.partial, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.close()

    def abandon(self) -> None:
        """Removes and closes the file."""
        self.partial.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Closes the descriptor, and leaves the file to others; twice is no error."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that is never seen in part; see the head of this file.

    Raises:
        OSError: The system refuses; the file is as it was.
    """
    file = PartialFile(path)
    try:
        with open(file.descriptor, "wb", closefd=False) as stream:
            stream.write(content)
        file.publish()
    except BaseException:
        file.abandon()
        raise


def write_json(path: Path, content: object, indent: int = 2) -> None:
    """The same for what is JSON."""
    write_atomically(path, (json.dumps(content, indent=indent) + "\n").encode())


def remove_stale(folder: Path) -> None:
    """Removes temporary files whose writers have died."""
    for entry in os.scandir(folder):
        if PARTIAL.fullmatch(entry.name) is None:
            continue
        # its writer may be faster, or another one who cleans up, or its folder be another's
        with suppress(OSError):
            if time() - entry.stat().st_mtime > STALE_SECONDS:
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
                finally:
                    os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Whether a lock was had, at once; on a file system without locks it always is."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
