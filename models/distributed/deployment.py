"""A deployment: engines in processes of their own that look like one engine.

A prompt is computed by a prefill engine, whose caches a decode engine then reads over NIXL. Any
engine can do all of it, so roles are a preference: what an engine loses by dying goes to another.
"""

from __future__ import annotations

import logging
import os
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_bytes
from tempfile import mkdtemp
from typing import Any, Literal, get_args

from blockstride.checks import expect
from blockstride.models.distributed.engine_processes import EngineProcesses
from blockstride.models.distributed.heartbeat import Watch
from blockstride.models.distributed.launch import plan_engines, start_engines
from blockstride.models.distributed.launcher import Launcher
from blockstride.models.distributed.local_ranks import LocalLauncher
from blockstride.models.distributed.messages import (
    Ask,
    Ended,
    Failed,
    Held,
    Load,
    Peer,
    Progress,
    Wake,
)
from blockstride.models.distributed.pipes import Inbox
from blockstride.models.distributed.requests import Requests
from blockstride.models.engine import (
    EngineConfig,
    EngineReport,
    Request,
    SamplingParams,
    TokenEvent,
)
from blockstride.models.engine.request import FinishReason
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
        device: Where they run; ranks are dealt to all GPUs in turn.
        transfer: How sequences are handed over: `"pull"`, decode engines read them; `"push"`,
            prefill engines write them; or settings of the connectors.
        timeout_seconds: After how long without a heartbeat an engine is given up.
        launcher: Starts the ranks; on this machine when None.

    Attributes:
        engines: All engines, those that are gone included.
        loads: Name of an engine -> what it last said of its load.

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
        device: str,
        transfer: ConnectorSettings | TransferWay = "pull",
        timeout_seconds: float = TIMEOUT_SECONDS,
        launcher: Launcher | None = None,
    ) -> None:
        launcher = LocalLauncher() if launcher is None else launcher
        expect(len(decode) > 0, "decode", "at least one engine", "none")
        ways = get_args(TransferWay)
        is_known = isinstance(transfer, ConnectorSettings) or transfer in ways
        expect(is_known, "transfer", f"settings, or one of {', '.join(ways)}", repr(transfer))
        expect(timeout_seconds > 0, "timeout_seconds", "more than 0", timeout_seconds)
        # once for all ranks, and before anything is begun that would have to be ended
        fingerprint = model_fingerprint(path) if prefill else ""
        self._inbox = inbox = Inbox()
        # no method of this object, which would then never be collected while the watch runs
        silent = Failed(TimeoutError, f"no heartbeat for {timeout_seconds:g} s")
        watch = Watch(timeout_seconds, lambda engine: inbox.put(engine, silent))
        self.engines: list[EngineProcesses] = []
        self._process, self._folder = os.getpid(), mkdtemp(prefix="blockstride-")
        belongings = self.engines, watch, self._folder
        self._finalizer = weakref.finalize(self, _end, self._process, *belongings)
        try:
            self.engines += plan_engines(
                {f"prefill-{i}": config for i, config in enumerate(prefill)}
                | {f"decode-{i}": config for i, config in enumerate(decode)},
                device,
                launcher,
                path=str(path),
                dtype=dtype,
                folder=self._folder,
                transfer=_shared_settings(transfer) if prefill else None,
                timeout_seconds=timeout_seconds,
                model_fingerprint=fingerprint,
            )
            answers = start_engines(self.engines)
        except BaseException:
            self._finalizer()
            raise
        self.prefill, self.decode = self.engines[: len(prefill)], self.engines[len(prefill) :]
        self._requests = Requests(self.prefill, self.decode)
        limits = [ready.limits for ready in answers if ready.limits is not None]
        self.limits = min(limits, key=lambda limits: limits.max_len)
        inbox.on_beat = lambda engine, beat: watch.heard(engine) if beat.makes_progress else None
        self.loads: dict[str, Load] = {}
        # nor may this one know more than the numbers
        inbox.on_load = partial(_note, self.loads)
        for engine in self.engines:
            engine.listen(inbox)
        watch.start(list(self.engines))
        for source, ready in zip(self.prefill, answers, strict=False):
            for reader in self.decode:
                reader.tell(Peer(source.engine_id, ready.addresses))

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
        return self._requests.add(prompt_ids, params, self.limits.longest(prompt_ids, params))

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
        if letter is None or isinstance(letter.message, Wake):
            return []
        return self._on(letter.sender, letter.message)

    def _on(self, engine: EngineProcesses, message: Any) -> list[TokenEvent]:
        if not engine.is_alive:
            return []
        match message:
            case Progress():
                return self._requests.on_progress(engine, message)
            case Held(request_id):
                self._requests.on_held(engine, request_id)
            case Failed(_, reason):
                return self._lose(engine, reason)
            case Ended():
                return self._lose(engine, engine.how_it_ended())
        return []

    def _lose(self, engine: EngineProcesses, reason: str) -> list[TokenEvent]:
        """Gives up an engine; its requests go on in others."""
        logger.error("%s: %s", engine.engine_id, reason)
        engine.kill()
        return self._requests.on_gone(engine, reason)

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
            elif not isinstance(letter.message, Wake):
                self._on(letter.sender, letter.message)
        return [reports[engine.engine_id] for engine in asked if engine.is_alive]

    def close(self) -> None:
        """Ends all processes, and requests with them; in a fork it does nothing."""
        if self._process != os.getpid():
            return
        # readers say goodbye to those that they read from
        for engine in reversed(self.engines):
            engine.close()
        self._finalizer()


def _note(loads: dict[str, Load], engine: EngineProcesses, load: Load) -> None:
    loads[engine.engine_id] = load


def _shared_settings(transfer: ConnectorSettings | TransferWay) -> ConnectorSettings:
    """Settings of all connectors, which trust each other by a key that nobody else has."""
    if isinstance(transfer, ConnectorSettings):
        settings = transfer
    else:
        settings = ConnectorSettings(lease_seconds=HELD_SECONDS, push=transfer == "push")
    # whoever gives engines different types wants them converted
    return replace(settings, key=settings.key or token_bytes(32), cast=True)


def _end(process: int, engines: Sequence[EngineProcesses], watch: Watch, folder: str) -> None:
    if process != os.getpid():
        # a fork has all this in memory, and ends it no more than its parent does
        return
    watch.stop()
    for engine in engines:
        engine.kill()
    shutil.rmtree(folder, ignore_errors=True)
