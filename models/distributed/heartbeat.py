"""Heartbeats: a process says that it gets on, and those who wait for it count the beats it misses.

A beat comes from a thread beside the one that works, so a long step delays none. A process that is
stopped, swapped out or dead sends none at all; one whose work doesn't get on says so in its beats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread, get_ident, get_native_id
from typing import Any

from blockstride.models.distributed.messages import Beat

BEATS = 5
"""Beats that are due in the time after which a process is given up."""

STEP_SECONDS = 600.0
"""Longest time for one piece of work, a first one with all its compilers."""

LEAST_SHARE = 0.01
"""Of a processor, that a thread takes at least when it computes."""


class Pulse:
    """Beats for the thread that makes it, from another one.

    Since the last beat that thread must have waited for something to do, ended a piece of work,
    computed, or had another program run, as compilers are. If it has done none of these, it waits
    for something that doesn't come.

    Args:
        seconds: After how long without a beat the process is given up.
        say: Called with each beat, on that other thread.
    """

    def __init__(self, seconds: float, say: Callable[[Beat], object]) -> None:
        self._interval, self._say = seconds / BEATS, say
        self._clock = time.pthread_getcpuclockid(get_ident())
        self._children = Path(f"/proc/self/task/{get_native_id()}/children")
        self._rests = False
        self._pieces = self._last_pieces = 0
        self._began = time.monotonic()
        self._last_cpu = 0.0

    def start(self) -> None:
        """Begins to beat, until the process ends."""
        Thread(target=self._run, name="blockstride-pulse", daemon=True).start()

    def ended_a_piece(self) -> None:
        """Says that some work is done."""
        self._pieces += 1
        self._began = time.monotonic()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """While there is nothing to do."""
        self._rests = True
        try:
            yield
        finally:
            self.ended_a_piece()
            self._rests = False

    def _run(self) -> None:
        # nobody may listen any more: the process is about to end
        with suppress(OSError, ValueError):
            while True:
                time.sleep(self._interval)
                self._say(Beat(self.gets_on()))

    def gets_on(self) -> bool:
        """Whether the thread has got on since the last call."""
        cpu, pieces = time.clock_gettime(self._clock), self._pieces
        computed = cpu - self._last_cpu > LEAST_SHARE * self._interval
        moved = pieces != self._last_pieces
        self._last_cpu, self._last_pieces = cpu, pieces
        if self._rests or moved:
            return True
        in_time = time.monotonic() - self._began < STEP_SECONDS
        return in_time and (computed or self._runs_programs())

    def _runs_programs(self) -> bool:
        with suppress(OSError):
            return bool(self._children.read_text("ascii").strip())
        return False


class Watch:
    """Counts beats that others miss.

    It counts on a thread of its own: while this whole process is stopped, nobody misses a beat.

    Args:
        seconds: Who sends no beat for so long is silent.
        on_silent: Called once for each who is, on the counting thread.
    """

    def __init__(self, seconds: float, on_silent: Callable[[Any], object]) -> None:
        self._interval, self._on_silent = seconds / BEATS, on_silent
        self._missed: dict[Any, int] = {}
        self._lock, self._end = Lock(), Event()

    def start(self, others: list[Any]) -> None:
        """Begins to expect beats of some others."""
        self._missed = dict.fromkeys(others, 0)
        Thread(target=self._run, name="blockstride-watch", daemon=True).start()

    def heard(self, other: Any) -> None:
        """Somebody's beat has come."""
        with self._lock:
            if other in self._missed:
                self._missed[other] = 0

    def stop(self) -> None:
        """Expects nothing more."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            for other in self._late():
                self._on_silent(other)

    def _late(self) -> list[Any]:
        with self._lock:
            for other in self._missed:
                self._missed[other] += 1
            # its last beat may be as old as the first tick that missed it
            late = [other for other, missed in self._missed.items() if missed > BEATS]
            for other in late:
                del self._missed[other]
        return late
