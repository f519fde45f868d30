"""Who belongs to a deployment: engines join and leave while it works, and replace each other."""

from __future__ import annotations

import logging
from threading import Event
from typing import get_args

from blockstride.checks import expect
from blockstride.models.distributed.engine_processes import EngineProcesses
from blockstride.models.distributed.fleet import Fleet, Role
from blockstride.models.distributed.letters import Joins
from blockstride.models.distributed.requests import Requests
from blockstride.models.engine import EngineConfig, TokenEvent
from blockstride.models.engine.values import expect_type

logger = logging.getLogger(__name__)


class Membership:
    """Rules by which engines come and go. One thread calls all of it but `start`.

    Args:
        fleet: The engines.
        requests: What they work on.
        hands_over: Whether they were made to read from each other.
        max_len: Most tokens of a sequence that all of them take.
        restarts: How many engines are started anew that died, or whose machine is taken away.
    """

    def __init__(
        self, fleet: Fleet, requests: Requests, hands_over: bool, max_len: int, restarts: int
    ) -> None:
        self._fleet, self._requests = fleet, requests
        self._hands_over, self._max_len = hands_over, max_len
        self._restarts = restarts

    def start(self, role: Role, config: EngineConfig) -> Joins:
        """Starts one more engine, and waits until it is ready; any thread may do so.

        Args:
            role: `"prefill"` or `"decode"`.
            config: The engine.

        Returns:
            What `join` takes.

        Raises:
            TypeError: No config.
            ValueError: No such role, a model or sizes that can't be, shorter sequences than the
                others take, or a prefill engine where there was none from the beginning, so that
                nothing is handed over.
            EngineDiedError: It ended before it was ready.
            TimeoutError: It wasn't ready in `START_SECONDS`.
        """
        expect(role in get_args(Role), "role", "prefill or decode", repr(role))
        can_be = role == "decode" or self._hands_over
        expect(can_be, "role", "decode where no prefill engine was there from the beginning", role)
        expect_type(config, "config", EngineConfig, "an EngineConfig")
        ((_, engine, ready),) = self._fleet.start([(role, config)])
        got = 0 if ready.limits is None else ready.limits.max_len
        if got < self._max_len:
            # it couldn't go on with what others had begun
            self._fleet.discard(engine)
            wanted = f"at least {self._max_len} tokens, as the others take"
            expect(False, f"{engine.engine_id}: max_len", wanted, got)
        return Joins(role, engine, ready)

    def join(self, joins: Joins) -> str:
        """Has an engine that is ready take requests from now on.

        Returns:
            Its name.
        """
        joins.engine.room = self._max_len
        self._fleet.join(joins.role, joins.engine, joins.ready)
        self.let_leave()
        return joins.engine.engine_id

    def retire(self, engine_id: str) -> Event:
        """Gives an engine no new requests, and lets it go when those that it has are over.

        Returns:
            Set when it has left.

        Raises:
            ValueError: There is no such engine, or no other one that stays.
        """
        engine = self._fleet.find(engine_id)
        stays = [each for each in self._fleet.engines if each is not engine and not each.is_leaving]
        expect(bool(stays), "engine_id", "one that isn't the last", repr(engine_id))
        engine.is_leaving = True
        self.let_leave()
        return engine.has_left

    def give_up(self, engine_id: str, reason: str) -> None:
        """Ends an engine now, if it is still there; its requests go on elsewhere.

        Raises:
            EngineDiedError: It was the last.
        """
        for engine in self._fleet.engines:
            if engine.engine_id == engine_id:
                self.lose(engine, reason)

    def lose(self, engine: EngineProcesses, reason: str) -> list[TokenEvent]:
        """Ends an engine that has failed; its requests go on elsewhere.

        Returns:
            The ends of requests that have been through this too often.

        Raises:
            EngineDiedError: It was the last.
        """
        logger.error("%s: %s", engine.engine_id, reason)
        role = self._fleet.role_of(engine)
        # first, so that nobody thinks in between that no engine is left and none comes
        if not engine.is_leaving:
            self._replace(role, engine)
        self._fleet.remove(engine)
        return self._requests.on_gone(engine, reason)

    def drain(self, engine: EngineProcesses) -> None:
        """Has an engine leave, because its machine will."""
        if not engine.is_leaving:
            logger.warning("%s: its machine is about to be taken away", engine.engine_id)
            engine.is_leaving = True
            self._replace(self._fleet.role_of(engine), engine)
            self.let_leave()

    def let_leave(self) -> None:
        """Lets those go that are to leave, and have nothing to do, unless no other is left."""
        leaving = [engine for engine in self._fleet.engines if engine.is_leaving]
        if leaving and len(leaving) < len(self._fleet.engines):
            for engine in filter(self._requests.is_idle, leaving):
                self._fleet.dismiss(engine)

    def _replace(self, role: Role, engine: EngineProcesses) -> None:
        """Starts another engine like one that is gone, or soon will be, if that is wanted."""
        if self._restarts > 0:
            self._restarts -= 1
            self._fleet.start_later(role, engine.setup.config)
