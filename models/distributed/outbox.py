"""Saying things through a pipe: from several threads, or without ever waiting for who listens."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any


class Speaker:
    """A pipe that several threads talk through, one after the other.

    Args:
        pipe: The pipe; nobody else sends through it.
    """

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._turn = Lock()

    def send(self, message: Any) -> None:
        """Says something, when it is this thread's turn."""
        with self._turn:
            self.pipe.send(message)


class Outbox:
    """Messages that a thread of its own sends, so that whoever has one never waits.

    Whether they arrive is noticed elsewhere: a process that doesn't take them misses its beats.

    Args:
        pipe: The pipe; nobody else sends through it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._messages: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_send_all, args=(pipe, self._messages), daemon=True).start()

    def put(self, message: Any) -> None:
        """Says something soon, after all that was put before."""
        self._messages.put((message,))

    def close(self) -> None:
        """Says nothing more."""
        self._messages.put(None)


def _send_all(pipe: Connection, messages: SimpleQueue[Any]) -> None:
    # nobody may listen any more
    with suppress(OSError, ValueError):
        while (envelope := messages.get()) is not None:
            pipe.send(*envelope)
