"""Requests of a deployment: which engine works on each, and where one goes on when that fails.

What happens when is in the table `FRONT_END`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from blockstride.models.distributed.engine_processes import EngineDiedError, EngineProcesses
from blockstride.models.distributed.known_prefixes import as_tokens
from blockstride.models.distributed.life import FRONT_END, Deed, News, Stage
from blockstride.models.distributed.messages import Progress, Start, Stop, Token
from blockstride.models.distributed.routing import READ_SHARE, Candidate, choose_engine
from blockstride.models.engine import Request, SamplingParams, TokenEvent
from blockstride.models.engine.request import FinishReason

MAX_LOSSES = 3
"""A request that so many engines died with ends: it may be what they die of."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Tracked:
    """A request that has not ended.

    Attributes:
        request: It.
        stage: Where it is.
        engine: Who works on it.
        holder: Who holds its blocks for that engine.
        losses: Engines that died with it.
        load: Tokens that the engine is to compute before its next one.
    """

    request: Request
    stage: Stage = Stage.COMPUTING
    engine: EngineProcesses | None = None
    holder: EngineProcesses | None = None
    losses: int = 0
    load: int = 0


class Requests:
    """All requests that have not ended, by id.

    Args:
        prefill: Engines that compute prompts.
        decode: Engines that continue them.
    """

    def __init__(
        self, prefill: Sequence[EngineProcesses], decode: Sequence[EngineProcesses]
    ) -> None:
        self._prefill, self._decode = prefill, decode
        self._ids = count()
        self._tracked: dict[int, _Tracked] = {}
        self._deeds: dict[Deed, Callable[[_Tracked], object]] = {
            Deed.PLACE: self._place,
            Deed.MOVE: self._move,
            Deed.STOP: self._stop,
            Deed.LET_GO: self._let_go,
            Deed.FORGET_HOLDER: self._forget_holder,
        }

    def __len__(self) -> int:
        return len(self._tracked)

    def add(self, prompt_ids: Sequence[int], params: SamplingParams, max_len: int) -> Request:
        """Sends a new request to an engine.

        Raises:
            EngineDiedError: None is left.
        """
        request = Request(next(self._ids), list(prompt_ids), params, max_len)
        self._place(_Tracked(request))
        return request

    def abort(self, request: Request, reason: FinishReason) -> None:
        """Ends a request for its caller's reasons."""
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            request.finish_reason = reason
            self._on(tracked, News.ABORTED)

    def on_progress(self, engine: EngineProcesses, progress: Progress) -> list[TokenEvent]:
        """Takes in what a step of an engine has brought; returns what somebody waits for."""
        for request_id, num_cached in progress.cached.items():
            if tracked := self._find(engine, request_id):
                tracked.request.num_cached = num_cached
                _weigh(tracked)
        pairs = [(self._find(engine, token.request_id), token) for token in progress.tokens]
        return [self._on_token(tracked, token) for tracked, token in pairs if tracked is not None]

    def _on_token(self, tracked: _Tracked, token: Token) -> TokenEvent:
        request = tracked.request
        if token.token_id is not None:
            request.num_cached = request.num_tokens
            request.output_ids.append(token.token_id)
            _weigh(tracked)
        if len(request.output_ids) == 1:
            request.num_resumed = token.num_resumed
        if token.logprobs is not None:
            request.logprobs.append(token.logprobs)
        request.prompt_logprobs.extend(token.prompt_logprobs)
        request.finish_reason, request.error = token.finish_reason, token.error
        self._on(tracked, News.TOKEN if token.finish_reason is None else News.LAST_TOKEN)
        return TokenEvent(request, token.token_id)

    def on_held(self, engine: EngineProcesses, request_id: int) -> None:
        """An engine holds the blocks of a request for another one."""
        if tracked := self._find(engine, request_id):
            may_move = any(each.is_alive for each in self._decode)
            self._on(tracked, News.HELD if may_move else News.HELD_IN_VAIN)

    def on_gone(self, engine: EngineProcesses, reason: str) -> list[TokenEvent]:
        """An engine is no more, as others will hear: its requests go on elsewhere.

        Returns:
            The ends of requests that have been through this too often.

        Raises:
            EngineDiedError: No engine is left for a request; all have ended then.
        """
        ended = []
        try:
            for tracked in list(self._tracked.values()):
                if tracked.holder is engine:
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
            for tracked in list(self._tracked.values()):
                self._fail(tracked, message)
            raise EngineDiedError(message) from None
        return ended

    def _find(self, engine: EngineProcesses, request_id: int) -> _Tracked | None:
        """A request that an engine works on, as far as is known here."""
        tracked = self._tracked.get(request_id)
        return tracked if tracked is not None and tracked.engine is engine else None

    def _fail(self, tracked: _Tracked, message: str) -> None:
        tracked.request.finish_reason, tracked.request.error = "error", message
        self._on(tracked, News.ABORTED)

    def _on(self, tracked: _Tracked, news: News) -> None:
        """Does what the table says."""
        tracked.stage, deeds = FRONT_END[tracked.stage][news]
        for deed in deeds:
            self._deeds[deed](tracked)
        if tracked.stage is Stage.ENDED:
            self._remember(tracked)
            self._leave_engine(tracked)

    def _place(self, tracked: _Tracked) -> None:
        """In a prefill engine if it is new, else in a decode engine; in any if need be."""
        request = tracked.request
        is_new = not request.output_ids
        usable = _usable(self._prefill if is_new else (), self._decode, self._prefill)
        if not usable:
            raise EngineDiedError("no engine is left")
        may_move = any(engine.is_alive for engine in self._decode)
        self._leave_engine(tracked)
        if tracked.engine is not None:
            # what is still said of it as it was is about nobody
            old_id, request.request_id = request.request_id, next(self._ids)
            logger.info("request %d: begins anew as %d", old_id, request.request_id)
            request.num_cached = 0
        hands_over = is_new and may_move and usable[0] in self._prefill
        self._begin(tracked, self._choose(request, usable), hands_over=hands_over)

    def _move(self, tracked: _Tracked) -> None:
        self._leave_engine(tracked)
        tracked.holder = tracked.engine
        usable = _usable(self._decode)
        self._begin(tracked, self._choose(tracked.request, usable, READ_SHARE))

    def _choose(
        self, request: Request, engines: Sequence[EngineProcesses], token_cost: float = 1.0
    ) -> EngineProcesses:
        """The engine that suits a request best."""
        if len(engines) == 1:
            return engines[0]
        tokens, salt = as_tokens(request.tokens(0, request.num_tokens)), request.params.cache_salt
        candidates = [
            Candidate(
                each.queued_tokens, len(each.requests), each.room, each.known.match(tokens, salt)
            )
            for each in engines
        ]
        chosen = choose_engine(len(tokens), candidates, token_cost)
        # until the engine says how far it has come
        known = min(candidates[chosen].known_tokens, len(tokens) - 1)
        request.num_cached = max(request.num_cached, known)
        return engines[chosen]

    def _begin(
        self, tracked: _Tracked, engine: EngineProcesses, *, hands_over: bool = False
    ) -> None:
        """Gives a request to an engine."""
        request = tracked.request
        tracked.engine = engine
        self._remember(tracked)
        engine.requests.add(request.request_id)
        _weigh(tracked)
        # until it says how much is left
        engine.room -= request.num_tokens
        self._tracked[request.request_id] = tracked
        engine.tell(
            Start(
                request.request_id,
                request.prompt_ids,
                list(request.output_ids),
                request.params,
                request.max_len,
                hands_over,
                "" if tracked.holder is None else tracked.holder.engine_id,
            )
        )

    def _remember(self, tracked: _Tracked) -> None:
        """Its engine has all the tokens of a request now, or will have."""
        request, engine = tracked.request, tracked.engine
        if engine is not None and any(len(kind) > 1 for kind in (self._prefill, self._decode)):
            tokens = as_tokens(request.tokens(0, request.num_tokens))
            engine.known.add(tokens, request.params.cache_salt)

    def _leave_engine(self, tracked: _Tracked) -> None:
        request_id = tracked.request.request_id
        if tracked.engine is not None:
            tracked.engine.requests.discard(request_id)
            tracked.engine.queued_tokens -= tracked.load
            tracked.load = 0
        self._tracked.pop(request_id, None)

    def is_idle(self, engine: EngineProcesses) -> bool:
        """Whether an engine neither works on a request nor holds blocks of one."""
        return not engine.requests and all(
            tracked.holder is not engine for tracked in self._tracked.values()
        )

    def _stop(self, tracked: _Tracked) -> None:
        assert tracked.engine is not None, "it has been placed"
        tracked.engine.tell(Stop(tracked.request.request_id))

    def _let_go(self, tracked: _Tracked) -> None:
        """Blocks come back now, not when a lease runs out."""
        if tracked.holder is not None:
            tracked.holder.tell(Stop(tracked.request.request_id))
            tracked.holder = None

    def _forget_holder(self, tracked: _Tracked) -> None:
        tracked.holder = None


def _usable(*choices: Sequence[EngineProcesses]) -> list[EngineProcesses]:
    """Of the first group with any, those that may be given a request.

    Engines that are about to leave are none of them, unless no others are left anywhere.
    """
    alive = [[engine for engine in engines if engine.is_alive] for engines in choices]
    staying = [[engine for engine in engines if not engine.is_leaving] for engines in alive]
    return next((engines for engines in staying + alive if engines), [])


def _weigh(tracked: _Tracked) -> None:
    """Takes in how much of a request its engine still has to compute."""
    assert tracked.engine is not None, "it has been placed"
    load = max(1, tracked.request.num_uncached)
    tracked.engine.queued_tokens += load - tracked.load
    tracked.load = load
