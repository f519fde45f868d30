"""Requests of a deployment: which engine works on each, and where one goes on when that fails.

What happens when is in the table `FRONT_END`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.life import FRONT_END, Deed, News, Stage
from blockstride.models.distributed.messages import Gone, NewToken, Stop, Submit
from blockstride.models.engine import Request, TokenEvent
from blockstride.models.engine.request import FinishReason

MAX_LOSSES = 3
"""A request that so many engines died with ends: it may be what they die of."""


@dataclass(eq=False)
class _Tracked:
    """A request that has not ended.

    Attributes:
        request: It.
        stage: Where it is.
        engine: Who works on it.
        job: As what.
        holder: Who holds its blocks for that engine, and as what job.
        losses: Engines that died with it.
    """

    request: Request
    stage: Stage = Stage.COMPUTING
    engine: EngineProcesses | None = None
    job: int = -1
    holder: tuple[EngineProcesses, int] | None = None
    losses: int = 0


class Requests:
    """All requests that have not ended.

    Args:
        prefill: Engines that compute prompts.
        decode: Engines that continue them.
    """

    def __init__(
        self, prefill: Sequence[EngineProcesses], decode: Sequence[EngineProcesses]
    ) -> None:
        self._prefill, self._decode = prefill, decode
        self._numbers = count()
        self._by_job: dict[int, _Tracked] = {}
        self._by_request: dict[int, _Tracked] = {}
        self._deeds: dict[Deed, Callable[[_Tracked], object]] = {
            Deed.PLACE: self._place,
            Deed.MOVE: self._move,
            Deed.STOP: self._stop,
            Deed.LET_GO: self._let_go,
            Deed.FORGET_HOLDER: self._forget_holder,
        }

    def __len__(self) -> int:
        return len(self._by_request)

    def add(self, request: Request) -> None:
        """Sends a new request to an engine.

        Raises:
            EngineDiedError: None is left.
        """
        tracked = _Tracked(request)
        try:
            self._place(tracked)
        except EngineDiedError as error:
            request.finish_reason, request.error = "error", str(error)
            raise
        self._by_request[request.request_id] = tracked

    def abort(self, request: Request, reason: FinishReason) -> None:
        """Ends a request for its caller's reasons."""
        tracked = self._by_request.get(request.request_id)
        if tracked is not None:
            request.finish_reason = reason
            self._on(tracked, News.ABORTED)

    def on_token(self, token: NewToken) -> TokenEvent | None:
        """What a job has brought; None when nobody waits for it any more."""
        tracked = self._by_job.get(token.job)
        if tracked is None:
            return None
        request = tracked.request
        if token.token_id is not None:
            request.num_cached = request.num_tokens
            request.output_ids.append(token.token_id)
        request.finish_reason, request.error = token.finish_reason, token.error
        self._on(tracked, News.TOKEN if token.finish_reason is None else News.LAST_TOKEN)
        return TokenEvent(request, token.token_id)

    def on_cached(self, job: int, num_tokens: int) -> None:
        """So much of a prompt is computed."""
        if job in self._by_job:
            self._by_job[job].request.num_cached = num_tokens

    def on_held(self, job: int) -> None:
        """Its blocks wait for another engine."""
        if job in self._by_job:
            may_move = any(engine.is_alive for engine in self._decode)
            self._on(self._by_job[job], News.HELD if may_move else News.HELD_IN_VAIN)

    def on_gone(self, engine: EngineProcesses, reason: str) -> list[TokenEvent]:
        """An engine is no more: all who wait for it are told, and its requests go on elsewhere.

        Returns:
            The ends of requests that have been through this too often.

        Raises:
            EngineDiedError: No engine is left for a request; all have ended then.
        """
        for other in (*self._prefill, *self._decode):
            other.tell(Gone(engine.engine_id))
        ended = []
        try:
            for tracked in list(self._by_request.values()):
                if tracked.holder is not None and tracked.holder[0] is engine:
                    self._on(tracked, News.HOLDER_GONE)
                if tracked.engine is not engine:
                    continue
                tracked.losses += 1
                if tracked.losses < MAX_LOSSES:
                    self._on(tracked, News.ENGINE_GONE)
                else:
                    ended.append(TokenEvent(tracked.request, None))
                    self._fail(tracked, f"{engine.engine_id}: {reason}")
        except EngineDiedError as error:
            message = f"{engine.engine_id}: {reason}; {error}"
            for tracked in list(self._by_request.values()):
                self._fail(tracked, message)
            raise EngineDiedError(message) from None
        return ended

    def _fail(self, tracked: _Tracked, message: str) -> None:
        tracked.request.finish_reason, tracked.request.error = "error", message
        self._on(tracked, News.ABORTED)

    def _on(self, tracked: _Tracked, news: News) -> None:
        """Does what the table says."""
        tracked.stage, deeds = FRONT_END[tracked.stage][news]
        for deed in deeds:
            self._deeds[deed](tracked)
        if tracked.stage is Stage.ENDED:
            self._leave_engine(tracked)
            self._by_request.pop(tracked.request.request_id, None)

    def _place(self, tracked: _Tracked) -> None:
        """In a prefill engine if it is new, else in a decode engine; in any if need be."""
        is_new = not tracked.request.output_ids
        for engines in (self._prefill if is_new else (), self._decode, self._prefill):
            alive = [engine for engine in engines if engine.is_alive]
            if alive:
                break
        else:
            raise EngineDiedError("no engine is left")
        may_move = any(engine.is_alive for engine in self._decode)
        self._begin(tracked, alive, hands_over=is_new and engines is self._prefill and may_move)

    def _move(self, tracked: _Tracked) -> None:
        assert tracked.engine is not None, "it is held by the engine that computed it"
        tracked.holder = (tracked.engine, tracked.job)
        self._begin(tracked, [engine for engine in self._decode if engine.is_alive])

    def _begin(
        self, tracked: _Tracked, engines: Sequence[EngineProcesses], *, hands_over: bool = False
    ) -> None:
        """Makes a job of a request for the engine that has the fewest."""
        self._leave_engine(tracked)
        engine = min(engines, key=lambda each: len(each.jobs))
        tracked.engine, tracked.job = engine, next(self._numbers)
        engine.jobs.add(tracked.job)
        self._by_job[tracked.job] = tracked
        request, holder = tracked.request, tracked.holder
        engine.tell(
            Submit(
                tracked.job,
                request.prompt_ids,
                list(request.output_ids),
                request.params,
                request.max_len,
                hands_over,
                "" if holder is None else holder[0].engine_id,
                -1 if holder is None else holder[1],
            )
        )

    def _leave_engine(self, tracked: _Tracked) -> None:
        if tracked.engine is not None:
            tracked.engine.jobs.discard(tracked.job)
        self._by_job.pop(tracked.job, None)

    def _stop(self, tracked: _Tracked) -> None:
        assert tracked.engine is not None, "it has been placed"
        tracked.engine.tell(Stop(tracked.job))

    def _let_go(self, tracked: _Tracked) -> None:
        """Blocks come back now, not when a lease runs out."""
        if tracked.holder is not None:
            engine, job = tracked.holder
            engine.tell(Stop(job))
            tracked.holder = None

    def _forget_holder(self, tracked: _Tracked) -> None:
        tracked.holder = None
