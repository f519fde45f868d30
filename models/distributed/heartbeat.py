"""Heartbeats: a process says that it makes progress, and others count the beats that it misses.

A beat comes from a thread beside the one that works, so a long step delays none. A process that is
stopped, swapped out or dead sends none at all; one whose work is stuck says so in its beats.
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
"""Beats that a process sends in the time after which it would be given up."""

STEP_SECONDS = 600.0
"""Longest time for one piece of work, a first one with all its compilers."""

LEAST_SHARE = 0.01
"""A thread that computes takes at least this share of a processor."""


class Pulse:
    """Beats for the thread that makes it, sent by another one.

    A thread makes progress if, since the last beat, it was idle, finished some work, computed, or
    had another program run, such as a compiler. Otherwise it waits for something that doesn't come.

    Args:
        seconds: After how long without a beat the process is given up.
        send: Called with each beat, on that other thread.
    """

    def __init__(self, seconds: float, send: Callable[[Beat], object]) -> None:
        self._interval, self._send = seconds / BEATS, send
        self._clock = time.pthread_getcpuclockid(get_ident())
        self._children = Path(f"/proc/self/task/{get_native_id()}/children")
        self._is_idle = False
        self._num_finished = self._last_finished = 0
        self._began = time.monotonic()
        self._last_cpu = 0.0

    def start(self) -> None:
        """Begins to beat, until the process ends."""
        Thread(target=self._run, name="blockstride-pulse", daemon=True).start()

    def finished_work(self) -> None:
        """Some work is done; the thread itself says so."""
        self._num_finished += 1
        self._began = time.monotonic()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """While there is nothing to do."""
        self._is_idle = True
        try:
            yield
        finally:
            self.finished_work()
            self._is_idle = False

    def _run(self) -> None:
        # when nobody listens any more, the process is about to end
        with suppress(OSError, ValueError):
            while True:
                time.sleep(self._interval)
                self._send(Beat(self.makes_progress()))

    def makes_progress(self) -> bool:
        """Whether the thread has made progress since the last call."""
        cpu, num_finished = time.clock_gettime(self._clock), self._num_finished
        computed = cpu - self._last_cpu > LEAST_SHARE * self._interval
        finished = num_finished != self._last_finished
        self._last_cpu, self._last_finished = cpu, num_finished
        if self._is_idle or finished:
            return True
        in_time = time.monotonic() - self._began < STEP_SECONDS
        return in_time and (computed or self._runs_programs())

    def _runs_programs(self) -> bool:
        with suppress(OSError):
            return bool(self._children.read_text("ascii").strip())
        return False


class Watch:
    """Counts the beats that other processes miss.

    It counts on a thread of its own: while this whole process is stopped, nobody misses a beat.

    Args:
        seconds: A process that sends no beat for so long is unresponsive.
        on_unresponsive: Called once for each that is, on the counting thread.
    """

    def __init__(self, seconds: float, on_unresponsive: Callable[[Any], object]) -> None:
        self._interval, self._on_unresponsive = seconds / BEATS, on_unresponsive
        self._missed: dict[Any, int] = {}
        self._lock, self._end = Lock(), Event()

    def start(self, others: list[Any]) -> None:
        """Expects beats from now on.

        Args:
            others: Who sends them, under any name.
        """
        self._missed = dict.fromkeys(others, 0)
        Thread(target=self._run, name="blockstride-watch", daemon=True).start()

    def add(self, other: Any) -> None:
        """Expects beats of one more."""
        with self._lock:
            self._missed[other] = 0

    def remove(self, other: Any) -> None:
        """Expects none of one any more."""
        with self._lock:
            self._missed.pop(other, None)

    def heard(self, other: Any) -> None:
        """A beat has come."""
        with self._lock:
            if other in self._missed:
                self._missed[other] = 0

    def stop(self) -> None:
        """Expects nothing more."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            for other in self._late():
                self._on_unresponsive(other)

    def _late(self) -> list[Any]:
        with self._lock:
            for other in self._missed:
                self._missed[other] += 1
            # its last beat may be as old as the first tick that missed it
            late = [other for other, missed in self._missed.items() if missed > BEATS]
            for other in late:
                del self._missed[other]
        return late
