"""Where commands write."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console


class Output(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Leaves it to the command line what that means."""
        raise  # noqa: PLE0704 (within the handler of the error)


def say(text: str) -> None:
    """Writes a line on standard error, if anybody reads it."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def write(text: str) -> None:
    """Writes on standard output, now."""
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def kept_at_end(rest: Callable[[], str]) -> Iterator[None]:
    """Has what is left be written on standard output if a signal or an interrupt ends the block."""

    def keep() -> None:
        # past the buffer, which the signal may have found half emptied
        with suppress(OSError, ValueError):
            left = rest().encode(sys.stdout.encoding, "backslashreplace")
            while left:
                left = left[os.write(sys.stdout.fileno(), left) :]

    # a signal runs what is registered and ends the process; see `program`
    atexit.register(keep)
    try:
        yield
    except KeyboardInterrupt:
        write(rest())
        raise
    finally:
        atexit.unregister(keep)


def close(stream: TextIO) -> None:
    """Drops what a stream still holds, which can't be written."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
