"""Two writers and a reader of one cache file in processes of their own, killed at random.

python -m tests.transfer.killed_writers [--kills N]

Every save fills the sequence's blocks with one number, and says in its tag which. A mixture of two
saves, a file that is not whole, or one that was written to after it got its name, ends the run.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from blockstride.transfer import atomic_file
from blockstride.transfer.atomic_file import remove_stale, write_atomically
from blockstride.transfer.tiers import CacheFile, CacheFileWriter
from tests.transfer.connector.bulk import bulk

ENGINE, NUM_TOKENS = bulk(2).local, 32
LONGEST_LIFE_SECONDS = 0.02
SAVED, READ = 0, 8
"""Where the processes count, in memory that they share."""


def count(shared: mmap, at: int) -> None:
    # two writers may lose a count to each other, which only has to grow
    shared[at : at + 8] = (int.from_bytes(shared[at : at + 8]) + 1).to_bytes(8)


def write(folder: Path, shared: mmap) -> NoReturn:
    """Saves for ever."""
    while True:
        number = random.randrange(256)
        writer = CacheFileWriter(folder / "cache", ENGINE, NUM_TOKENS, tag=bytes([number]))
        with writer, writer.writing(0):
            place = writer.place
            for pool, first in place.addresses.items():
                size = ENGINE.block_bytes[pool]
                for block in range(1, writer.engine.num_blocks[pool]):
                    os.pwrite(place.device, bytes([number]) * size, first + block * size)
        # a `with` closes it, and so it is joined again
        with CacheFileWriter(
            folder / "cache",
            ENGINE,
            NUM_TOKENS,
            tag=bytes([number]),
            save_id=writer.save_id,
            join=True,
        ) as again:
            again.seal()
        write_atomically(folder / "note", bytes([number]) * 100_000)
        count(shared, SAVED)


def read(folder: Path, shared: mmap) -> NoReturn:
    """Reads for ever what is there."""
    while True:
        with CacheFile(folder / "cache") as file:
            file.expect_readable()
            place = file.place
            for pool, first in place.addresses.items():
                size, blocks = ENGINE.block_bytes[pool], file.engine.num_blocks[pool] - 1
                content = os.pread(place.device, size * blocks, first + size)
                assert content == file.tag * (size * blocks), f"pool {pool}: a mixture"
        note = (folder / "note").read_bytes()
        assert note == note[:1] * 100_000, "a mixture"
        count(shared, READ)


def begin(work: Callable[[Path, mmap], NoReturn], folder: Path, shared: mmap) -> int:
    """A process that works until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        random.seed(os.getpid() + time.monotonic_ns())
        work(folder, shared)
    except BaseException as error:
        os.write(2, f"{work.__name__}: {error!r}\n".encode())
        os._exit(1)


def end(pid: int) -> None:
    """Kills a process, which must not have ended by itself."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it has ended by itself"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    kills = parser.parse_args(argv).kills
    shared = mmap(-1, 16)
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = begin(write, folder, shared)
        while not int.from_bytes(shared[SAVED : SAVED + 8]):
            time.sleep(0.001)
        end(first)
        works = [write, write, read]
        pids = [begin(work, folder, shared) for work in works]
        try:
            for _ in range(kills):
                time.sleep(random.uniform(0, LONGEST_LIFE_SECONDS))
                which = random.randrange(3)
                end(pids[which])
                pids[which] = begin(works[which], folder, shared)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        left = len(list(folder.iterdir())) - 2
        # as if it were later
        atomic_file.STALE_SECONDS = -1.0
        remove_stale(folder)
        assert sorted(os.listdir(folder)) == ["cache", "note"]
    saved, seen = (int.from_bytes(shared[at : at + 8]) for at in (SAVED, READ))
    assert min(saved, seen) > 0, f"{saved} saves, {seen} reads"
    sys.stdout.write(
        f"{kills} killed: {saved} saves and {seen} reads whole, {left} left-overs removed\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
