"""Engines that come and go while callers on any number of threads have requests in flight."""

from __future__ import annotations

from blockstride.checks import expect
from blockstride.models.distributed.deployment import Deployment
from blockstride.models.distributed.fleet import Role
from blockstride.models.engine import EngineConfig
from blockstride.models.engine_loop import EngineLoop


class ElasticEngines:
    """Adds and removes engines of a deployment; any thread may do so, at any time.

    Args:
        deployment: The engines.
        loop: The thread that owns them.
    """

    def __init__(self, deployment: Deployment, loop: EngineLoop) -> None:
        self._deployment, self._loop = deployment, loop

    def names(self, role: Role) -> list[str]:
        """Those of a role that take requests, as far as is known.

        Raises:
            ValueError: No such role.
        """
        expect(role in {"prefill", "decode"}, "role", "prefill or decode", repr(role))
        members = self._deployment.fleet.members(role)
        return [engine.engine_id for engine in members if not engine.is_leaving]

    @property
    def is_gone(self) -> bool:
        """Whether no engine is left, and none starts, as far as is known."""
        return self._deployment.fleet.is_gone

    def look_around(self) -> None:
        """Takes in what engines have said while there was no request.

        Raises:
            RuntimeError: The deployment was closed.
        """
        self._loop.call(self._deployment.look_around)

    def add(self, role: Role, config: EngineConfig) -> str:
        """Starts one more engine, and has it take requests when it is ready.

        Args:
            role: `"prefill"` or `"decode"`.
            config: The engine.

        Returns:
            Its name.

        Raises:
            TypeError, ValueError, EngineDiedError, TimeoutError: As `Membership.start`.
            RuntimeError: The deployment was closed.
        """
        members = self._deployment.members
        joins = members.start(role, config)
        return self._loop.call(lambda: members.join(joins))

    def remove(self, name: str, seconds: float | None = None) -> None:
        """Has an engine leave; requests that it has go on there to their end.

        Args:
            name: The engine.
            seconds: After how long they go on elsewhere, with the tokens they have, 0 for at once;
                None: it may take as long as they do.

        Raises:
            ValueError: There is no such engine, or no other one that stays; or negative seconds.
            RuntimeError: The deployment was closed.
        """
        expect(seconds is None or seconds >= 0, "seconds", "a time, or None", seconds)
        members = self._deployment.members
        has_left = self._loop.call(lambda: members.retire(name))
        if not has_left.wait(seconds):
            reason = f"it was to leave within {seconds:g} s"
            self._loop.call(lambda: members.give_up(name, reason))
            has_left.wait()
