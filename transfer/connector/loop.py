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
    """Background tasks, kept until they end: the event loop itself holds weak references."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts one."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancels all of them, without waiting for their ends."""
        for task in self._running:
            task.cancel()

    async def wait(self, grace_seconds: float) -> None:
        """Waits some time for all of them."""
        if self._running and grace_seconds:
            await asyncio.wait(self._running, timeout=grace_seconds)

    async def end(self, grace_seconds: float = 0.0) -> None:
        """Waits some time for all of them, and cancels those that are left."""
        await self.wait(grace_seconds)
        tasks = list(self._running)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
