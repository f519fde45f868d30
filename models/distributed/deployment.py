"""A deployment: engines in processes of their own that look like one engine.

A prompt is computed by a prefill engine, whose caches a decode engine then reads over NIXL. Any
engine can do all of it, so roles are a preference: what an engine loses by dying goes to another.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from blockstride.kernels.checks import expect
from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.inbox import Ended, Inbox, Wake
from blockstride.models.distributed.launch import plan_engines, start_engines
from blockstride.models.distributed.messages import (
    Abort,
    Ask,
    Failed,
    Held,
    NewToken,
    Peers,
    Progress,
    Report,
    Submit,
)
from blockstride.models.engine import EngineConfig, Request, SamplingParams, TokenEvent
from blockstride.models.engine.request import FinishReason
from blockstride.models.fingerprint import model_fingerprint
from blockstride.transfer.connector import ConnectorSettings

HELD_SECONDS = 120.0
"""How long a computed prompt waits for a decode engine to have room for it."""

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
        transfer: How sequences are handed over; None for the defaults.
        answer_seconds: How long an engine that has something to do may say nothing.

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
        transfer: ConnectorSettings | None = None,
        answer_seconds: float = 300.0,
    ) -> None:
        expect(len(decode) > 0, "decode", "at least one engine", "none")
        expect(answer_seconds > 0, "answer_seconds", "more than 0", answer_seconds)
        # once for all ranks, and before anything is begun that would have to be ended
        fingerprint = model_fingerprint(path) if prefill else ""
        self._answer_seconds = answer_seconds
        self._inbox = Inbox()
        self._next_id = 0
        # request -> the engine whose blocks wait to be read
        self._holders: dict[int, EngineProcesses] = {}
        self._folder = TemporaryDirectory(prefix="blockstride-")
        settings = None
        if prefill:
            settings = transfer or ConnectorSettings(lease_seconds=HELD_SECONDS)
            # whoever gives engines different types wants them converted
            settings = replace(settings, key=settings.key or token_bytes(32), cast=True)
        self.engines: list[EngineProcesses] = []
        self._finalizer = weakref.finalize(self, _end, self.engines, self._folder)
        try:
            self.engines += plan_engines(
                [
                    *((f"prefill-{i}", config) for i, config in enumerate(prefill)),
                    *((f"decode-{i}", config) for i, config in enumerate(decode)),
                ],
                path=path,
                dtype=dtype,
                device=device,
                folder=self._folder.name,
                transfer=settings,
                answer_seconds=answer_seconds,
                model_fingerprint=fingerprint,
            )
            answers = start_engines(self.engines, self._inbox)
        except BaseException:
            self._finalizer()
            raise
        self.prefill, self.decode = self.engines[: len(prefill)], self.engines[len(prefill) :]
        self.limits = min((ready.limits for ready in answers), key=lambda limits: limits.max_len)
        for source, ready in zip(self.prefill, answers, strict=False):
            for reader in self.decode:
                reader.tell(Peers(source.engine_id, ready.addresses))

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Sends a request to an engine.

        Args:
            prompt_ids: Tokens of the prompt, at least one.
            params: How to continue it.

        Raises:
            ValueError: An empty prompt, a token outside the vocabulary, or a prompt that leaves no
                room in a cache for one more token.
            EngineDiedError: No engine is left.
        """
        self.limits.check(prompt_ids)
        max_len = min(self.limits.max_len, len(prompt_ids) + params.max_tokens)
        request = Request(self._next_id, list(prompt_ids), params, max_len)
        self._next_id += 1
        self._send(request)
        return request

    def _send(self, request: Request) -> None:
        """To a prefill engine if it is new, else to a decode engine; to any if need be."""
        is_new = not request.output_ids
        for engines in (self.prefill if is_new else [], self.decode, self.prefill):
            alive = [engine for engine in engines if engine.is_alive]
            if alive:
                break
        else:
            request.finish_reason = "abort"
            raise EngineDiedError("no engine is left")
        hands_over = is_new and engines is self.prefill and any(e.is_alive for e in self.decode)
        self._submit(min(alive, key=lambda e: len(e.requests)), request, hands_over=hands_over)

    def _submit(
        self,
        engine: EngineProcesses,
        request: Request,
        *,
        hands_over: bool = False,
        source: str = "",
    ) -> None:
        if not engine.requests:
            engine.last_heard = monotonic()
        engine.requests[request.request_id] = request
        engine.tell(
            Submit(
                request.request_id,
                request.prompt_ids,
                request.output_ids,
                request.params,
                request.max_len,
                hands_over,
                source,
            )
        )

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now, for whatever reason."""
        if request.finish_reason is None:
            request.finish_reason = reason
            for engine in self.engines:
                if engine.requests.pop(request.request_id, None) is not None:
                    engine.tell(Abort(request.request_id))
            self._let_go(request)

    def _let_go(self, request: Request) -> None:
        """Whoever holds a request for others needn't any more."""
        holder = self._holders.pop(request.request_id, None)
        if holder is not None and holder.is_alive:
            holder.tell(Abort(request.request_id))

    def wake(self) -> None:
        """Has a step that waits return, from any thread."""
        self._inbox.put(self, Wake())

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return any(engine.requests for engine in self.engines)

    def step(self) -> list[TokenEvent]:
        """Waits until an engine has something to say.

        Returns:
            New tokens.

        Raises:
            EngineDiedError: The last engine that could go on has ended, or says nothing.
        """
        busy = [engine for engine in self.engines if engine.requests]
        if not busy:
            return []
        deaf = [engine for engine in busy if not engine.is_alive]
        letter = None if deaf else self._inbox.take(self._patience(busy))
        if letter is not None:
            is_wake = isinstance(letter.message, Wake)
            return [] if is_wake else self._on(letter.sender, letter.message)
        now = monotonic()
        for engine in busy:
            if engine in deaf or now - engine.last_heard >= self._answer_seconds:
                self._lose(engine, f"it has not answered for {self._answer_seconds} s")
        return []

    def _patience(self, engines: Sequence[EngineProcesses]) -> float:
        """Until the first of some engines has been silent for too long."""
        first = min(engine.last_heard for engine in engines)
        return max(0.001, first + self._answer_seconds - monotonic())

    def _on(self, engine: EngineProcesses, message: Any) -> list[TokenEvent]:
        if not engine.is_alive:
            return []
        engine.last_heard = monotonic()
        match message:
            case Progress():
                for number, num_cached in message.cached.items():
                    if number in engine.requests:
                        engine.requests[number].num_cached = num_cached
                events = (self._accept(engine, token) for token in message.tokens)
                return [event for event in events if event is not None]
            case Held():
                self._hand_over(engine, message.request_id)
            case Failed():
                self._lose(engine, message.reason)
            case Ended():
                self._lose(engine, engine.exit_codes())
        return []

    def _accept(self, engine: EngineProcesses, token: NewToken) -> TokenEvent | None:
        """A token, unless its request has been aborted."""
        request = engine.requests.get(token.request_id)
        if request is None:
            return None
        # it was read, or computed again
        self._let_go(request)
        request.num_cached = request.num_tokens
        if token.token_id is not None:
            request.output_ids.append(token.token_id)
        if token.finish_reason is not None:
            request.finish_reason = token.finish_reason
            del engine.requests[token.request_id]
        return TokenEvent(request, token.token_id)

    def _hand_over(self, source: EngineProcesses, number: int) -> None:
        request = source.requests.pop(number, None)
        if request is None:
            return
        self._holders[number] = source
        alive = [engine for engine in self.decode if engine.is_alive]
        if alive:
            target = min(alive, key=lambda engine: len(engine.requests))
            self._submit(target, request, source=source.engine_id)
        else:
            self._let_go(request)
            self._send(request)

    def _lose(self, engine: EngineProcesses, reason: str) -> None:
        """Gives up an engine, and what it was doing to others."""
        logger.error("%s: %s", engine.engine_id, reason)
        engine.kill()
        requests = list(engine.requests.values())
        engine.requests.clear()
        for request in requests:
            self._let_go(request)
        try:
            for request in requests:
                self._send(request)
        except EngineDiedError as error:
            for request in requests:
                request.finish_reason = request.finish_reason or "abort"
            raise EngineDiedError(f"{engine.engine_id}: {reason}; {error}") from None

    def reports(self) -> list[Report]:
        """What every engine has done so far, while no request is under way.

        Raises:
            TimeoutError: An engine doesn't answer.
        """
        expect(not self.has_work, "deployment", "no request under way", "some")
        asked = [engine for engine in self.engines if engine.is_alive]
        reports: dict[str, Report] = {}
        for engine in asked:
            engine.tell(Ask())
            engine.last_heard = monotonic()
        while len(reports) < len(asked):
            letter = self._inbox.take(self._patience(asked))
            if letter is None:
                raise TimeoutError(f"expected reports of {len(asked)} engines, got {len(reports)}")
            if isinstance(letter.message, Report):
                reports[letter.sender.engine_id] = letter.message
            elif not isinstance(letter.message, Wake):
                self._on(letter.sender, letter.message)
                asked = [engine for engine in asked if engine.is_alive]
        return [reports[engine.engine_id] for engine in asked]

    def close(self) -> None:
        """Ends all processes; requests that are under way end with them."""
        # readers say goodbye to those that they read from
        for engine in reversed(self.engines):
            engine.close()
        self._finalizer()


def _end(engines: Sequence[EngineProcesses], folder: TemporaryDirectory[str]) -> None:
    for engine in engines:
        engine.kill()
    folder.cleanup()
