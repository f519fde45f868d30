"""What all requests of a server share: the model, who may come in, and whether it still runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from blockstride.models.async_batch import Bell
from blockstride.models.async_llm import AsyncLLM
from blockstride.models.distributed import Deployment
from blockstride.models.llm import LLM
from blockstride.models.serving.errors import ApiError
from blockstride.models.serving.metrics import Metrics
from blockstride.models.serving.settings import ServerSettings
from blockstride.models.serving.token_texts import token_texts

LONGEST_RETRY = 60
ENDS_REMEMBERED_SECONDS = 10.0
"""Over so long ends of answers are counted, to tell when there is room again."""

logger = logging.getLogger(__name__)


class ServerState:
    """The model of a server and its requests.

    Args:
        llm: The model, whose engines are processes of their own.
        settings: Limits and deadlines.

    Attributes:
        created: When it began, in seconds since 1970.
        is_draining: Whether it ends when its last answer has.
        cut: Why all answers are to end now; None: they aren't.
    """

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self.llm, self.settings = llm, settings
        self.async_llm = AsyncLLM(llm)
        self.deployment: Deployment = llm.engine
        self.metrics = Metrics(settings.model_name, self.deployment)
        self.tokenizer = llm.tokenizer if llm.has_tokenizer else None
        self.text_of = token_texts(self.tokenizer)
        self.created = int(time.time())
        self.is_draining = False
        self.cut: ApiError | None = None
        self._num_in_flight = 0
        self._bells: set[Bell] = set()
        self._rate = EndRate()

    @property
    def is_failed(self) -> bool:
        """Whether no engine is left, and none starts."""
        return self.llm.engines.is_gone

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        alive = (each.is_alive and not each.has_ended for each in self.deployment.engines)
        return not self.is_draining and any(alive)

    @property
    def capacity(self) -> int:
        """Answers that may run at once."""
        return sum(each.setup.config.max_num_seqs for each in self.deployment.decode)

    def expect_running(self) -> None:
        """Raise `ApiError` unless new requests are taken."""
        if self.is_draining:
            raise ApiError(503, "this server is about to end", code="shutting_down", retry_after=1)
        if not self.is_ready:
            raise ApiError(503, "no engine is there", code="engine_failed", retry_after=5)

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """While some answers are in flight.

        Raises:
            ApiError: They would never fit, or don't now.
        """
        most = self.capacity + self.settings.max_waiting
        if count > most:
            message = f"n: expected at most {most} answers of a request, got {count}"
            raise ApiError(400, message, param="n", code="invalid_value")
        if self._num_in_flight + count > most:
            excess = self._num_in_flight + count - most
            seconds = self._rate.seconds_until(excess)
            message = f"{self._num_in_flight} answers are waited for; try again in {seconds} s"
            raise ApiError(429, message, code="too_many_requests", retry_after=seconds)
        self._num_in_flight += count
        self.metrics.in_flight.set(self._num_in_flight)
        try:
            yield
        finally:
            self._num_in_flight -= count
            self._rate.ended(count)
            self.metrics.in_flight.set(self._num_in_flight)

    @contextmanager
    def rung_when_cut(self, bell: Bell) -> Iterator[None]:
        """While a bell is rung if all answers are to end."""
        self._bells.add(bell)
        try:
            yield
        finally:
            self._bells.discard(bell)

    def cut_all(self, error: ApiError) -> None:
        """Ends all answers with an error."""
        if self._bells:
            logger.warning("%d requests are cut off: %s", len(self._bells), error.detail)
        self.cut = error
        for bell in self._bells:
            bell.ring()


class EndRate:
    """How many answers end in a second, as far as that can be told."""

    def __init__(self) -> None:
        self._since, self._count, self._rate = time.monotonic(), 0, 0.0

    def ended(self, count: int) -> None:
        """Some have ended."""
        self._count += count
        seconds = time.monotonic() - self._since
        if seconds >= ENDS_REMEMBERED_SECONDS:
            self._rate, self._count, self._since = self._count / seconds, 0, time.monotonic()

    def seconds_until(self, count: int) -> int:
        """After how many whole seconds so many more will have ended."""
        elapsed = max(1.0, time.monotonic() - self._since)
        rate = max(self._rate, self._count / elapsed)
        return LONGEST_RETRY if rate <= 0 else min(LONGEST_RETRY, 1 + int(count / rate))


async def watch_engines(state: ServerState, seconds: float = 0.5) -> None:
    """Returns when no engine is left, and none starts."""
    while not state.is_failed:
        await asyncio.sleep(seconds)
        # who has ended, or is ready to join, while nobody asks for anything
        with suppress(RuntimeError):
            await asyncio.to_thread(state.llm.engines.look_around)
