"""Where commands write."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
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


def close(stream: TextIO) -> None:
    """Drops what a stream still holds, which can't be written."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
