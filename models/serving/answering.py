"""The response to one request: its answers, whole or as a stream, as long as somebody reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blockstride.models.async_batch import AsyncBatch
from blockstride.models.engine import SamplingParams
from blockstride.models.serving.errors import LEFT, ApiError
from blockstride.models.serving.reading import Piece, Reading, joined
from blockstride.models.serving.shape import Shape, usage_of
from blockstride.models.serving.state import ServerState

JSON = [(b"content-type", b"application/json")]
EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # proxies that gather what they pass on
    (b"x-accel-buffering", b"no"),
]


class ClientLeftError(Exception):
    """Nobody reads the response any more."""


class Answering(Response):
    """Runs a request and sends what comes of it. The request ends with whoever reads.

    A stream begins with its first token, so that what goes wrong before has a status of its own.

    Args:
        state: The server.
        shape: How answers look.
        submit: Makes tokens of the prompts and queues them.
        params: How they are continued.
        num_prompts: How many prompts there are.
    """

    def __init__(
        self,
        state: ServerState,
        shape: Shape,
        submit: Callable[[], Awaitable[AsyncBatch]],
        params: SamplingParams,
        num_prompts: int,
    ) -> None:
        self.background, self.status_code = None, 200
        self._state, self._shape, self._submit = state, shape, submit
        self._num_answers, self._num_prompts = params.n, num_prompts
        self._began = time.monotonic()
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response, unless the client leaves.

        Raises:
            ApiError: Something went wrong before any of it was sent.
        """
        settings, log = self._state.settings, scope["state"].setdefault("log", {})
        with ExitStack() as stack:
            stack.enter_context(self._state.room_for(self._num_answers * self._num_prompts))
            self._batch = batch = await self._submit()
            stack.callback(batch.abort)
            stack.enter_context(self._state.rung_when_cut(batch.bell))
            self._left = asyncio.create_task(_until_left(receive))
            self._left.add_done_callback(lambda _: batch.bell.ring())
            stack.callback(self._left.cancel)
            self._deadline = self._began + settings.request_seconds
            timer = asyncio.get_running_loop().call_later(settings.request_seconds, batch.bell.ring)
            stack.callback(timer.cancel)
            self._readings = [Reading(each, i) for i, each in enumerate(batch.generations)]
            self._measure_prompts(log)
            stack.callback(self._describe, log)
            try:
                await (self._stream if self._shape.body.stream else self._whole)(scope, send)
            except ClientLeftError as error:
                log |= {"status": LEFT, "error": str(error)}

    def _measure_prompts(self, log: dict[str, Any]) -> None:
        sizes = [len(each.prompt_ids) for each in self._batch.generations[:: self._num_answers]]
        for size in sizes:
            self._state.metrics.prompt_sizes.observe(size)
        self._state.metrics.prompt_tokens.inc(sum(sizes))
        log["prompt_tokens"] = sum(sizes)

    def _describe(self, log: dict[str, Any]) -> None:
        requests = [each.request for each in self._batch.generations if each.request]
        log["engine_requests"] = [request.request_id for request in requests]
        log["new_tokens"] = sum(reading.num_tokens for reading in self._readings)

    async def _whole(self, scope: Scope, send: Send) -> None:
        parts: list[list[Piece]] = [[] for _ in self._readings]
        while True:
            for _, piece in self._news():
                parts[piece.answer].append(piece)
            if all(reading.is_over for reading in self._readings):
                break
            await self._wait()
        choices = [
            self._shape.choice(reading.generation, joined(pieces))
            for reading, pieces in zip(self._readings, parts, strict=True)
        ]
        body = self._shape.whole_body(choices, self._usage())
        await self._send(scope, send, body, [*JSON, (b"content-length", b"%d" % len(body))])

    async def _stream(self, scope: Scope, send: Send) -> None:
        try:
            while True:
                if events := self._events():
                    await self._send(scope, send, b"".join(events), EVENTS, more=True)
                if all(reading.is_over for reading in self._readings):
                    break
                await self._wait()
        except ApiError as error:
            if not self._has_begun:
                raise
            # the status is sent; what follows isn't an end
            scope["state"]["log"]["error"] = str(error.detail)
            await self._send(scope, send, b"data: %b\n\n" % error.body, EVENTS)
            return
        await self._send(scope, send, self._shape.last_events(self._usage()), EVENTS)

    def _events(self) -> list[bytes]:
        events, news = [], self._news()
        # of many answers, it is a sum over all of them
        usage = self._usage() if self._shape.counts_on else {}
        for reading, piece in news:
            for choice in self._shape.deltas(reading.generation, piece):
                events.append(self._shape.event(choice, usage))
        return events

    def _news(self) -> list[tuple[Reading, Piece]]:
        """What is new of each answer."""
        read = [(reading, reading.next()) for reading in self._readings if not reading.is_over]
        pieces = [(reading, piece) for reading, piece in read if piece is not None]
        self._measure(pieces)
        return pieces

    def _measure(self, pieces: list[tuple[Reading, Piece]]) -> None:
        metrics, now = self._state.metrics, time.monotonic()
        for reading, piece in pieces:
            count = len(piece.token_ids)
            if piece.is_first and count:
                metrics.first_token.observe(now - self._began)
                metrics.new_tokens.inc()
                count -= 1
            if count:
                metrics.tokens_came(count, now - reading.last_read)
            if piece.finish_reason is not None:
                metrics.ended(piece.finish_reason)
                metrics.whole.observe(now - self._began)
                metrics.answer_sizes.observe(reading.num_tokens)
            reading.last_read = now

    def _usage(self) -> dict[str, int]:
        num_new = sum(reading.num_tokens for reading in self._readings)
        return usage_of(self._batch.generations, num_new, self._num_answers)

    async def _wait(self) -> None:
        """Waits for something new.

        Raises:
            ClientLeftError: The client has left.
            ApiError: Its time is over, or all answers are to end.
        """
        await self._batch.changed()
        if self._left.done():
            raise ClientLeftError("the client has left")
        if self._state.cut is not None:
            raise self._state.cut
        if time.monotonic() >= self._deadline:
            seconds = self._state.settings.request_seconds
            raise ApiError(504, f"the answer took more than {seconds:g} s", code="timeout")

    async def _send(
        self,
        scope: Scope,
        send: Send,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        more: bool = False,
    ) -> None:
        """Sends bytes; a client that doesn't read them for too long is cut off."""
        try:
            async with asyncio.timeout(self._state.settings.send_seconds):
                if not self._has_begun:
                    self._has_begun = True
                    start = {"type": "http.response.start", "status": 200, "headers": headers}
                    await send(start)
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            scope["state"]["abort"]()
            # so that the server sees the end of the connection before that of the response
            await asyncio.sleep(0)
            raise ClientLeftError("the client reads nothing") from None


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
