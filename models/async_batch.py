"""Requests of one call, as a task follows them: told that something is new, it looks what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from blockstride.models.generation import Batch, Generation


class Bell:
    """Wakes a task of the running event loop; any thread may ring it, as often as it likes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._is_ringing = False

    def ring(self) -> None:
        """Wakes the task, unless it is being woken; raises `RuntimeError` if its loop is closed."""
        if not self._is_ringing:
            self._is_ringing = True
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        """Waits until it has been rung since the last time."""
        await self._rung.wait()
        # before anything is looked at: what comes from now on rings again
        self._is_ringing = False
        self._rung.clear()


class AsyncBatch:
    """The requests of one call, which end with it: when it is aborted, or nobody holds it any more.

    Args:
        batch: The requests.
        bell: Rung by each of their tokens and ends.
    """

    def __init__(self, batch: Batch, bell: Bell) -> None:
        self._batch, self.bell = batch, bell

    @property
    def generations(self) -> Sequence[Generation]:
        """The requests: prompt after prompt, of each its answers."""
        return self._batch.generations

    @property
    def is_done(self) -> bool:
        """Whether all are over."""
        return all(generation.done.is_set() for generation in self.generations)

    async def changed(self) -> None:
        """Waits until there is a token or an end that was not there when this returned last."""
        await self.bell.wait()

    def abort(self) -> None:
        """Ends what isn't over, without waiting for it."""
        self._batch.abort()
