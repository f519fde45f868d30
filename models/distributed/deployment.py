"""A deployment: engines in processes of their own that look like one engine.

A prompt is computed by a prefill engine, whose caches a decode engine then reads over NIXL. Any
engine can do all of it, so roles are a preference: what an engine loses by dying goes to another.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any, Literal, get_args

from blockstride.checks import expect
from blockstride.models.distributed.engine_processes import EngineProcesses
from blockstride.models.distributed.fleet import Fleet, Role
from blockstride.models.distributed.launcher import Launcher
from blockstride.models.distributed.letters import Draining, Ended, Joins, Wake
from blockstride.models.distributed.load import Load
from blockstride.models.distributed.local_ranks import LocalLauncher
from blockstride.models.distributed.membership import Membership
from blockstride.models.distributed.messages import Ask, Failed, Held, Progress
from blockstride.models.distributed.pipes import Inbox, Letter
from blockstride.models.distributed.requests import Requests
from blockstride.models.engine import (
    EngineConfig,
    EngineReport,
    Request,
    SamplingParams,
    TokenEvent,
)
from blockstride.models.engine.request import FinishReason
from blockstride.models.engine.values import whole
from blockstride.models.fingerprint import model_fingerprint
from blockstride.transfer.connector import ConnectorSettings

TransferWay = Literal["pull", "push"]

HELD_SECONDS = 120.0
"""Longest time that a computed prompt waits until a decode engine has room for it."""

TIMEOUT_SECONDS = 20.0
"""Time without a heartbeat; a busy machine may not let a process run for some seconds."""

logger = logging.getLogger(__name__)


class Deployment:
    """Engines of one model, each in a process for each of its ranks.

    The processes end with this one, however it ends.

    Args:
        path: Hugging Face checkpoint folder.
        prefill: Engines that compute prompts; none: decode engines do.
        decode: Engines that continue them.
        dtype: See `load_model`.
        device: Where they run; see `Launcher.deal`.
        transfer: How sequences are handed over: `"pull"`, decode engines read them; `"push"`,
            prefill engines write them; or settings of the connectors.
        timeout_seconds: After how long without a heartbeat an engine is given up.
        launcher: Starts the ranks; on this machine when None.
        restarts: How many engines are started anew that died, or whose machine is taken away.

    Attributes:
        limits: Prompts that all engines take.
        fleet: The engines.
        members: Has engines join and leave.

    Raises:
        ValueError: No decode engine, or a model or sizes that can't be.
        EngineDiedError: A process ended before it was ready.
        TimeoutError: An engine wasn't ready in `START_SECONDS`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        prefill: Sequence[EngineConfig] = (),
        decode: Sequence[EngineConfig],
        dtype: str,
        device: str | None,
        transfer: ConnectorSettings | TransferWay = "pull",
        timeout_seconds: float = TIMEOUT_SECONDS,
        launcher: Launcher | None = None,
        restarts: int = 0,
    ) -> None:
        expect(len(decode) > 0, "decode", "at least one engine", "none")
        ways = get_args(TransferWay)
        is_known = isinstance(transfer, ConnectorSettings) or transfer in ways
        expect(is_known, "transfer", f"settings, or one of {', '.join(ways)}", repr(transfer))
        expect(timeout_seconds > 0, "timeout_seconds", "more than 0", timeout_seconds)
        restarts = whole(restarts, "restarts", 0, "a number of engines")
        has_files = any(config.file_cache for config in (*prefill, *decode))
        shared = {
            "path": str(Path(path).absolute()),
            "dtype": dtype,
            "transfer": _shared_settings(transfer) if prefill else None,
            # once for all ranks, and before anything is begun that would have to be ended
            "model_fingerprint": model_fingerprint(path) if prefill or has_files else "",
        }
        self._inbox, self._process = Inbox(), os.getpid()
        launcher = LocalLauncher() if launcher is None else launcher
        self.fleet = Fleet(launcher, device, self._inbox, timeout_seconds, shared)
        # the fleet knows nothing of this object, which can be collected therefore
        self._finalizer = weakref.finalize(self, self.fleet.end)
        wanted: list[tuple[Role, EngineConfig]] = [("prefill", config) for config in prefill]
        started = self._start_or_end([*wanted, *(("decode", config) for config in decode)])
        limits = [ready.limits for _, _, ready in started if ready.limits is not None]
        self.limits = min(limits, key=lambda limits: limits.max_len)
        self._requests = Requests(self.fleet.prefill, self.fleet.decode)
        self.members = Membership(
            self.fleet, self._requests, bool(prefill), self.limits.max_len, restarts
        )
        for role, engine, ready in started:
            self.members.join(Joins(role, engine, ready))

    def _start_or_end(self, wanted: Sequence[tuple[Role, EngineConfig]]) -> list[Any]:
        try:
            return self.fleet.start(wanted)
        except BaseException:
            self._finalizer()
            raise

    @property
    def loads(self) -> dict[str, Load]:
        """Name of each engine -> what it last said of its load, once it has said something."""
        engines = {engine.engine_id: engine.load for engine in self.engines}
        return {name: load for name, load in engines.items() if load is not None}

    @property
    def engines(self) -> list[EngineProcesses]:
        """All engines."""
        return self.fleet.engines

    @property
    def prefill(self) -> list[EngineProcesses]:
        """Engines that compute prompts."""
        return self.fleet.prefill

    @property
    def decode(self) -> list[EngineProcesses]:
        """Engines that continue them."""
        return self.fleet.decode

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Sends a request to an engine.

        Args:
            prompt_ids: Tokens of the prompt, at least one.
            params: How to continue it.

        Raises:
            ValueError: An empty prompt, a token outside the vocabulary, or a prompt that leaves no
                room in a cache for one more token.
            EngineDiedError: No engine is left.
            RuntimeError: A fork of the process that made this asks.
        """
        if self._process != os.getpid():
            raise RuntimeError("deployment: expected the process that made it, got a fork of that")
        self.limits.check(prompt_ids, params)
        if not self.has_work:
            self._catch_up()
        return self._requests.add(prompt_ids, params, self.limits.longest(prompt_ids, params))

    def look_around(self) -> None:
        """Takes in what engines have said while there was no request, their ends for one."""
        if not self.has_work:
            self._catch_up()

    def _catch_up(self) -> None:
        """Takes in what has been said while nobody waited for anything."""
        is_woken = False
        while (letter := self._inbox.take(0)) is not None:
            is_woken |= isinstance(letter.message, Wake)
            self._on(letter)
        if is_woken:
            # that is for the next step
            self.wake()

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now, for whatever reason."""
        self._requests.abort(request, reason)

    def wake(self) -> None:
        """Makes a step that waits return; any thread may call it."""
        self._inbox.put(self, Wake())

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return len(self._requests) > 0

    def step(self) -> list[TokenEvent]:
        """Waits for a message of an engine.

        Returns:
            New tokens, and ends of requests that failed.

        Raises:
            EngineDiedError: The last engine that could go on has ended, or is silent.
        """
        if not self.has_work:
            return []
        letter = self._inbox.take()
        return [] if letter is None else self._on(letter)

    def _on(self, letter: Letter) -> list[TokenEvent]:
        """Takes in what an engine says, or what is said of it."""
        engine, message = letter
        events = []
        match message:
            case Wake():
                return []
            case Joins():
                self.members.join(message)
            case _ if engine not in self.engines:
                # what was said by one that is gone
                return []
            case Progress():
                events = self._requests.on_progress(engine, message)
            case Held(request_id):
                self._requests.on_held(engine, request_id)
            case Failed(_, reason):
                events = self.members.lose(engine, reason)
            case Ended():
                events = self.members.lose(engine, engine.how_it_ended())
            case Draining():
                self.members.drain(engine)
        self.members.let_leave()
        return events

    def reports(self) -> list[EngineReport]:
        """What every engine that lives has done so far, while no request is in flight."""
        expect(not self.has_work, "deployment", "no request in flight", "some")
        reports: dict[str, EngineReport] = {}
        asked = [engine for engine in self.engines if engine.is_alive]
        for engine in asked:
            engine.tell(Ask())
        while any(engine.is_alive and engine.engine_id not in reports for engine in asked):
            letter = self._inbox.take()
            assert letter is not None, "it waits as long as it takes"
            if isinstance(letter.message, EngineReport):
                reports[letter.sender.engine_id] = letter.message
            else:
                self._on(letter)
        return [reports[engine.engine_id] for engine in asked if engine.is_alive]

    def close(self) -> None:
        """Ends all processes, and requests with them; in a fork it does nothing."""
        if self._process != os.getpid():
            return
        self.fleet.close()
        self._finalizer()


def _shared_settings(transfer: ConnectorSettings | TransferWay) -> ConnectorSettings:
    """Settings of all connectors, which trust each other by a key that nobody else has."""
    if isinstance(transfer, ConnectorSettings):
        settings = transfer
    else:
        settings = ConnectorSettings(lease_seconds=HELD_SECONDS, push=transfer == "push")
    # whoever gives engines different types wants them converted
    return replace(settings, key=settings.key or token_bytes(32), cast=True)
