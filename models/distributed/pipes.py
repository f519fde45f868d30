"""Pipes between processes: one inbox receives from many, and senders never wait for long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

from blockstride.models.distributed.letters import Ended
from blockstride.models.distributed.load import Load
from blockstride.models.distributed.messages import Beat


class Letter(NamedTuple):
    """Who said what."""

    sender: Any
    message: Any


class Inbox:
    """Listens to pipes, each on a thread of its own, so that no sender ever waits for long.

    Attributes:
        on_beat: Called with who has sent a beat, and the beat, on the listening thread: beats are
            no letters, and heard at once whatever lies in the queue.
        on_load: The same for what an engine says of its load.
    """

    def __init__(self) -> None:
        self.on_beat: Callable[[Any, Beat], object] = lambda sender, beat: None
        self.on_load: Callable[[Any, Load], object] = lambda sender, load: None
        self._letters: SimpleQueue[Letter] = SimpleQueue()

    def put(self, sender: Any, message: Any) -> None:
        """Adds a message from within this process; any thread may call it."""
        self._letters.put(Letter(sender, message))

    def listen(
        self, sender: Any, pipe: Connection, on_end: Callable[[], object] | None = None
    ) -> None:
        """Begins to listen.

        Args:
            sender: Who is at the other end.
            pipe: The pipe; nobody else receives from it.
            on_end: Called on the listening thread when the other end is gone, before the letter
                that says so.
        """
        Thread(target=self._listen, args=(sender, pipe, on_end), daemon=True).start()

    def _listen(self, sender: Any, pipe: Connection, on_end: Callable[[], object] | None) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = pipe.recv()
                if isinstance(message, Beat):
                    self.on_beat(sender, message)
                elif isinstance(message, Load):
                    self.on_load(sender, message)
                else:
                    self.put(sender, message)
        if on_end is not None:
            on_end()
        self.put(sender, Ended())

    def take(self, seconds: float | None = None) -> Letter | None:
        """The next letter.

        Args:
            seconds: How long to wait for one; None: as long as it takes.

        Returns:
            The letter; None when there is none in time.
        """
        try:
            return self._letters.get(timeout=seconds)
        except Empty:
            return None


class LockedPipe:
    """A pipe that several threads send through, one after the other.

    Args:
        pipe: The pipe; nobody else sends through it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._turn = pipe, Lock()

    def send(self, message: Any) -> None:
        """Sends a message, when it is this thread's turn."""
        with self._turn:
            self._pipe.send(message)


class Outbox:
    """A thread that sends messages, so that nobody waits until they are received.

    A process that doesn't receive them is noticed by the heartbeats that it misses.

    Args:
        pipe: The pipe; nobody else sends through it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._messages: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_send_all, args=(pipe, self._messages), daemon=True).start()

    def put(self, message: Any) -> None:
        """Sends a message after all that were put before."""
        self._messages.put((message,))

    def close(self) -> None:
        """Sends nothing more."""
        self._messages.put(None)


def _send_all(pipe: Connection, messages: SimpleQueue[Any]) -> None:
    # the other end may be gone
    with suppress(OSError, ValueError):
        while (envelope := messages.get()) is not None:
            pipe.send(*envelope)
