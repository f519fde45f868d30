"""The engines of a deployment: which there are, which start, and which leave."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from tempfile import mkdtemp
from threading import Lock, Thread
from time import sleep
from typing import Any, Literal

from blockstride.checks import expect
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.heartbeat import Watch
from blockstride.models.distributed.launch import plan_engines, start_engines
from blockstride.models.distributed.launcher import Launcher
from blockstride.models.distributed.letters import Joins
from blockstride.models.distributed.messages import Beat, Failed, Peer, Ready
from blockstride.models.distributed.pipes import Inbox
from blockstride.models.engine import EngineConfig

PAUSES = (0.0, 2.0, 10.0, 30.0)
"""Seconds before each attempt to replace an engine."""

Role = Literal["prefill", "decode"]

logger = logging.getLogger(__name__)


class Fleet:
    """Engines by role; a name is never given twice.

    One thread has engines join and leave; any may start some.

    Args:
        launcher: Starts ranks.
        device: Where they run; see `Launcher.deal`.
        inbox: Where engines that have joined are heard.
        timeout_seconds: After how long without a heartbeat an engine is given up.
        shared: Other fields of `Setup` that are the same for all.

    Attributes:
        prefill: Engines that compute prompts.
        decode: Engines that continue them.
    """

    def __init__(
        self,
        launcher: Launcher,
        device: str | None,
        inbox: Inbox,
        timeout_seconds: float,
        shared: dict[str, Any],
    ) -> None:
        self.prefill: list[EngineProcesses] = []
        self.decode: list[EngineProcesses] = []
        self._launcher, self._device, self._inbox = launcher, device, inbox
        self._process, self._folder = os.getpid(), mkdtemp(prefix="blockstride-")
        self._shared = {**shared, "folder": self._folder, "timeout_seconds": timeout_seconds}
        silent = Failed(TimeoutError, f"no heartbeat for {timeout_seconds:g} s")
        self._watch = Watch(timeout_seconds, lambda engine: inbox.put(engine, silent))
        self._watch.start([])
        inbox.on_beat, inbox.on_load = self._on_beat, EngineProcesses.note_load
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._addresses: dict[EngineProcesses, tuple[str, ...]] = {}
        # those that start, or leave
        self._apart: set[EngineProcesses] = set()
        self._num_promised = 0
        self._is_over = False

    @property
    def is_gone(self) -> bool:
        """Whether there is no engine, and none starts."""
        return not (self.prefill or self.decode or self._apart or self._num_promised)

    @property
    def engines(self) -> list[EngineProcesses]:
        """All that have joined, in the order of their roles."""
        return [*self.prefill, *self.decode]

    def members(self, role: Role) -> list[EngineProcesses]:
        """Those of a role."""
        return self.prefill if role == "prefill" else self.decode

    def find(self, engine_id: str) -> EngineProcesses:
        """An engine by its name.

        Raises:
            ValueError: There is none.
        """
        known = {engine.engine_id: engine for engine in self.engines}
        names = ", ".join(known) or "none"
        expect(engine_id in known, "engine_id", f"one of {names}", repr(engine_id))
        return known[engine_id]

    def start(
        self, wanted: Sequence[tuple[Role, EngineConfig]]
    ) -> list[tuple[Role, EngineProcesses, Ready]]:
        """Starts engines, and waits until all are ready.

        Raises:
            ValueError, EngineDiedError, TimeoutError: As `plan_engines` and `start_engines`; none
                of them runs then.
        """
        configs = {self._name(role): config for role, config in wanted}
        engines = plan_engines(configs, self._device, self._launcher, **self._shared)
        self._apart.update(engines)
        try:
            if self._is_over:
                raise EngineDiedError("deployment: expected an open one, got one that was closed")
            answers = start_engines(engines)
            return [
                (role, engine, ready)
                for (role, _), engine, ready in zip(wanted, engines, answers, strict=True)
            ]
        except BaseException:
            for engine in engines:
                self.discard(engine)
            raise

    def start_later(self, role: Role, config: EngineConfig) -> None:
        """Starts an engine without waiting for it; the inbox is told when it is ready to join.

        What ended the one before, such as a machine that vanished, may not be known everywhere yet,
        so it is tried several times.
        """
        with self._lock:
            self._num_promised += 1
        name = "blockstride-replacement"
        Thread(target=self._replace, args=(role, config), name=name, daemon=True).start()

    def _replace(self, role: Role, config: EngineConfig) -> None:
        try:
            self._try_to_replace(role, config)
        finally:
            with self._lock:
                self._num_promised -= 1

    def _try_to_replace(self, role: Role, config: EngineConfig) -> None:
        for pause in PAUSES:
            sleep(pause)
            if self._is_over:
                return
            try:
                ((_, engine, ready),) = self.start([(role, config)])
            except Exception as error:
                logger.warning("a %s engine isn't replaced yet: %s", role, error)
            else:
                self._inbox.put(engine, Joins(role, engine, ready))
                return
        logger.error("a %s engine isn't replaced", role)

    def discard(self, engine: EngineProcesses) -> None:
        """Ends an engine that was started, and hasn't joined."""
        engine.kill()
        self._apart.discard(engine)

    def _name(self, role: Role) -> str:
        number = self._counts[role]
        self._counts[role] += 1
        return f"{role}-{number}"

    def join(self, role: Role, engine: EngineProcesses, ready: Ready) -> None:
        """Has an engine that is ready work with the others."""
        self._apart.discard(engine)
        self._addresses[engine] = ready.addresses
        engine.listen(self._inbox)
        self._watch.add(engine)
        self.members(role).append(engine)
        if role == "prefill":
            for reader in self.decode:
                reader.tell(Peer(engine.engine_id, ready.addresses))
        else:
            for source in self.prefill:
                engine.tell(Peer(source.engine_id, self._addresses[source]))

    def role_of(self, engine: EngineProcesses) -> Role:
        """What an engine that has joined is there for."""
        return "prefill" if engine in self.prefill else "decode"

    def dismiss(self, engine: EngineProcesses) -> None:
        """Ends an engine politely that works on nothing any more, without waiting for it."""
        self._part_with(engine, engine.close)

    def remove(self, engine: EngineProcesses) -> None:
        """Ends an engine that has failed, without waiting for it."""
        self._part_with(engine, engine.kill)
        engine.is_alive = False

    def _part_with(self, engine: EngineProcesses, end: Callable[[], object]) -> None:
        self._forget(engine)
        self._apart.add(engine)

        def part() -> None:
            end()
            # what it may still have written settles when its processes have ended
            for other in self.engines:
                other.tell(Peer(engine.engine_id, ()))
            self._apart.discard(engine)
            logger.info("%s: has left", engine.engine_id)
            engine.has_left.set()

        Thread(target=part, name="blockstride-farewell", daemon=True).start()

    def _forget(self, engine: EngineProcesses) -> None:
        self.members(self.role_of(engine)).remove(engine)
        del self._addresses[engine]
        self._watch.remove(engine)

    def _on_beat(self, engine: EngineProcesses, beat: Beat) -> None:
        if beat.makes_progress:
            self._watch.heard(engine)

    def close(self) -> None:
        """Asks all to end."""
        # readers say goodbye to those that they read from
        for engine in reversed(self.engines):
            engine.close()

    def end(self) -> None:
        """Ends all, however they are; in a fork, which has all this in memory, nothing."""
        if self._process != os.getpid():
            return
        self._is_over = True
        self._watch.stop()
        for engine in [*self.engines, *self._apart]:
            engine.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._launcher.close()
