"""The connector's thread: an event loop on which everything happens, its tasks and sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import zmq
import zmq.asyncio

Result = TypeVar("Result")

CALL_SECONDS = 60.0
"""How long a call into the thread may take; it waits for nobody else."""


def new_socket(context: zmq.asyncio.Context, kind: int, max_bytes: int) -> zmq.asyncio.Socket:
    """A socket that refuses long messages and keeps nothing once it is closed."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    return socket


class LoopThread:
    """An event loop on a thread of its own.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine there, and waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls a function there, and waits for its result."""

        async def call() -> Result:
            return function()

        return self.run(call())

    def post(self, function: Callable[[], object]) -> None:
        """Schedules a call there; does nothing if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Ends the thread."""
        self.post(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()


class Tasks:
    """Tasks and other futures, kept until they are done: the event loop holds weak references."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task."""
        self.add(asyncio.create_task(work))

    def add(self, future: asyncio.Future[None]) -> asyncio.Future[None]:
        """Keeps a future, and gives it back."""
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def cancel(self) -> None:
        """Cancels all of them, without waiting for their ends."""
        for future in self._running:
            future.cancel()

    async def wait(self, grace_seconds: float | None = None) -> None:
        """Waits some time for all that there are; None: until there are none."""
        while self._running and grace_seconds != 0:
            await asyncio.wait(self._running, timeout=grace_seconds)
            if grace_seconds is not None:
                return

    async def end(self, grace_seconds: float = 0.0) -> None:
        """Waits some time for all of them, and cancels those that are left."""
        await self.wait(grace_seconds)
        left = list(self._running)
        self.cancel()
        await asyncio.gather(*left, return_exceptions=True)
