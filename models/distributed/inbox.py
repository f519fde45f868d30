"""An inbox: what several processes say, in one queue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from blockstride.models.distributed.heartbeat import Beat


class Ended:
    """Said for a process that has ended, or closed its end of the pipe."""


class Silent:
    """Said for a process that has missed too many beats."""


class Wake:
    """Said by a thread of this process to another that waits for letters."""


class Letter(NamedTuple):
    """Who said what."""

    sender: Any
    message: Any


class Inbox:
    """Listens to pipes, each on a thread of its own, so that no sender ever waits for long.

    Attributes:
        on_beat: Called with who has sent a beat, and the beat, on the listening thread: beats are
            no letters, and heard at once whatever lies in the queue.
    """

    def __init__(self) -> None:
        self.on_beat: Callable[[Any, Beat], object] = lambda sender, beat: None
        self._letters: SimpleQueue[Letter] = SimpleQueue()

    def put(self, sender: Any, message: Any) -> None:
        """Says something from within this process, on any thread."""
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
                else:
                    self.put(sender, message)
        if on_end is not None:
            on_end()
        self.put(sender, Ended())

    def take(self, seconds: float | None) -> Letter | None:
        """The next letter.

        Args:
            seconds: How long to wait for one; None: as long as it takes.

        Returns:
            The letter; None when there is none in time.
        """
        try:
            return self._letters.get(timeout=seconds) if seconds else self._at_once(seconds)
        except Empty:
            return None

    def _at_once(self, seconds: float | None) -> Letter:
        return self._letters.get() if seconds is None else self._letters.get_nowait()
