"""One thread that owns an engine, for callers on any number of others.

Callers queue what they want, and are told what becomes of it as the loop steps: the engine itself
knows no threads. The thread begins with the first request, waits while there is none, and ends when
the loop is closed or nobody holds it any more.
"""

from __future__ import annotations

import atexit
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol, TypeVar, runtime_checkable
from weakref import WeakSet, finalize, ref

from blockstride.models.engine import PromptLimits, Request, SamplingParams, TokenEvent
from blockstride.models.engine.request import FinishReason

CLOSE_SECONDS = 30.0
"""How long closing waits for the step that runs."""

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@runtime_checkable
class TokenEngine(Protocol):
    """What turns requests into tokens, called by one thread; `Engine` and `Deployment` are two."""

    limits: PromptLimits

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Queues a request."""
        ...

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        ...

    def step(self) -> list[TokenEvent]:
        """Goes on with all requests, and returns the tokens that this has brought."""
        ...

    def wake(self) -> None:
        """Makes a step that waits return; any thread may call it."""
        ...

    def close(self) -> None:
        """Ends what runs beside this process."""
        ...


class Submission(ABC):
    """A request on its way to the engine and through it.

    The loop's thread calls its methods, which neither wait nor raise.

    Args:
        prompt_ids: Tokens of the prompt.
        params: How to continue it.

    Attributes:
        request: What the engine made of it; None before that.
    """

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self.prompt_ids, self.params = prompt_ids, params
        self.request: Request | None = None

    @abstractmethod
    def on_token(self, token_id: int) -> FinishReason | None:
        """Takes a new token; a reason if the request is to end with it."""

    @abstractmethod
    def on_end(self, reason: FinishReason) -> None:
        """The request has ended."""

    @abstractmethod
    def on_error(self, error: BaseException) -> None:
        """The request can't be completed: the engine failed, or was closed."""


class EngineLoop:
    """Runs an engine on a thread of its own.

    What the engine raises goes to all who wait; it is asked again for what comes later.

    Args:
        engine: The engine. While requests are in flight, nobody else may use it.
    """

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        # queues that finalizers may use, whatever they interrupt
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: dict[Request, Submission] = {}
        self._lock = Lock()
        self._thread: Thread | None = None
        self._process = 0
        self._why_closed = ""

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Queues requests, in this order; they are told what becomes of them.

        Raises:
            RuntimeError: It was closed, or belongs to another process.
        """
        self._queue(lambda: self._add(submissions))

    def _queue(self, command: Callable[[], None]) -> None:
        if self._is_fork:
            raise RuntimeError("LLM: expected the process that uses it, got a fork of that")
        with self._lock:
            if self._why_closed:
                raise RuntimeError(self._why_closed)
            if self._thread is None:
                self._start()
            self._commands.put(command)
        self._engine.wake()

    def abort(self, submission: Submission) -> None:
        """Ends a request as soon as the engine is between two steps, if it hasn't ended.

        Never waits, and may be called from anywhere, by finalizers too.
        """
        self._commands.put(lambda: self._abort(submission))
        self._engine.wake()

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls a function on the loop's thread, between two steps, and waits for its result.

        Raises:
            RuntimeError: As `submit`.
            Exception: What the function raises.
        """
        answer: Future[Result] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # for who waits for it, and for nobody else
                answer.set_exception(error)

        self._queue(run)
        return answer.result()

    def close(self) -> None:
        """Ends all requests, with an error for those who wait, and then the thread.

        In a fork it does nothing: what there is to end is the other process's.
        """
        if self._is_fork:
            return
        with self._lock:
            if not self._why_closed:
                self._why_closed = "LLM: expected an open one, got one that was closed"
                self._commands.put(self._end_all)
                self._commands.put(None)
            thread = self._thread
        self._engine.wake()
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    @property
    def _is_fork(self) -> bool:
        """Whether this process has the engine's memory, and neither its thread nor its devices."""
        return self._thread is not None and self._process != os.getpid()

    def _start(self) -> None:
        # it ends with the interpreter, which ends it in order if it can
        arguments = (self._commands, ref(self))
        self._thread = Thread(target=_serve, args=arguments, name="engine loop", daemon=True)
        self._process = os.getpid()
        _OPEN.add(self)
        finalize(self, self._commands.put, None).atexit = False
        self._thread.start()

    def run(self, command: Callable[[], None]) -> None:
        """Does what was queued, and steps until no request is left; on the loop's thread."""
        try:
            command()
            while self._running:
                if self._commands.empty():
                    self._step()
                elif (queued := self._commands.get()) is not None:
                    queued()
        except BaseException as error:  # whatever it is, nobody may wait for ever
            self._fail(error)

    def _step(self) -> None:
        for event in self._engine.step():
            submission = self._running.get(event.request)
            if submission is not None and event.token_id is not None:
                reason = submission.on_token(event.token_id)
                if reason is not None:
                    self._engine.abort(event.request, reason)
        # some end without a token
        for request in list(self._running):
            if request.finish_reason is not None:
                _log_end(request)
                self._running.pop(request).on_end(request.finish_reason)
        if self._running and not self._engine.has_work:
            raise RuntimeError(f"engine: expected work on {len(self._running)} requests, got none")

    def _add(self, submissions: Sequence[Submission]) -> None:
        try:
            for submission in submissions:
                request = self._engine.add_request(submission.prompt_ids, submission.params)
                submission.request = request
                self._running[request] = submission
                number, size = request.request_id, len(request.prompt_ids)
                logger.info("request %d: begins, %d prompt tokens", number, size)
        except BaseException as error:  # all or none
            for submission in submissions:
                self._refuse(submission, error)

    def _abort(self, submission: Submission) -> None:
        if self._drop(submission):
            submission.on_end("abort")

    def _drop(self, submission: Submission) -> bool:
        """Takes a request from the engine, if it is there."""
        request = submission.request
        if request is None or request not in self._running:
            return False
        self._engine.abort(request)
        del self._running[request]
        _log_end(request)
        return True

    def _end_all(self) -> None:
        self._fail(RuntimeError(self._why_closed))

    def _fail(self, error: BaseException) -> None:
        for submission in list(self._running.values()):
            self._refuse(submission, error)
        self._running.clear()

    def _refuse(self, submission: Submission, error: BaseException) -> None:
        try:
            self._drop(submission)
        except Exception:  # an engine that is broken may not even be able to forget it
            logger.exception("a request can't be taken from its engine")
        submission.on_error(error)


def _log_end(request: Request) -> None:
    logger.info(
        "request %d: ends, %s after %d new tokens",
        request.request_id,
        request.error or request.finish_reason,
        len(request.output_ids),
    )


_OPEN: WeakSet[EngineLoop] = WeakSet()


def _serve(commands: SimpleQueue[Callable[[], None] | None], weak_loop: ref[EngineLoop]) -> None:
    """The thread; while it waits, it doesn't keep the loop alive."""
    while (command := commands.get()) is not None:
        loop = weak_loop()
        if loop is None:
            return
        loop.run(command)
        del command, loop


@atexit.register
def _close_all() -> None:
    """Threads that compute while the interpreter is taken down bring it down."""
    for loop in list(_OPEN):
        loop.close()
