"""AsyncLLM: an LLM for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Unpack

from blockstride.models.async_batch import AsyncBatch, Bell
from blockstride.models.chat_template import Messages, TemplateOptions, conversations
from blockstride.models.engine import SamplingParams
from blockstride.models.engine.values import expect_type
from blockstride.models.generation import Batch, Completion
from blockstride.models.llm import LLM
from blockstride.models.prompts import Prompt, as_prompt


class AsyncLLM:
    """An `LLM` for tasks of asyncio, of any number of event loops.

    Whatever else uses the same LLM, on any thread, runs together with them.

    Args:
        llm: What generates; closing this closes it.

    Raises:
        TypeError: Something else, such as a path.
    """

    def __init__(self, llm: LLM) -> None:
        expect_type(llm, "llm", LLM, "an LLM")
        self.llm = llm

    async def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continues every prompt, as `LLM.generate`; cancelling it ends them."""
        done = _Mailbox()
        batch = self.llm.submit(prompts, params, on_done=lambda: done.put(None))
        try:
            for _ in batch.generations:
                await done.get()
        except BaseException:
            batch.abort()
            raise
        return [generation.result() for generation in batch.generations]

    async def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[TemplateOptions],
    ) -> list[Completion]:
        """Answers a conversation, or several, as `LLM.chat`; cancelling it ends them."""
        prompts = [self.llm.chat_prompt(each, **options) for each in conversations(messages)]
        return await self.generate(prompts, params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncStream:
        """Continues one prompt from now on, as `LLM.stream`.

        Raises:
            RuntimeError: There is no running event loop, or the LLM was closed.
        """
        pieces = _Mailbox()
        batch = self.llm.submit(
            [as_prompt(prompt)], params, on_piece=pieces.put, on_done=lambda: pieces.put(None)
        )
        return AsyncStream(batch, pieces)

    async def submit(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> AsyncBatch:
        """Queues all prompts or none, as `LLM.submit`; another thread makes tokens of them."""
        bell = Bell()
        batch = await asyncio.to_thread(
            self.llm.submit, prompts, params, on_done=bell.ring, on_token=bell.ring
        )
        return AsyncBatch(batch, bell)

    async def close(self) -> None:
        """Ends all requests, and what the engine needs beyond this process."""
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Mailbox:
    """A queue of the running event loop that any thread may put into."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()

    def put(self, item: str | None) -> None:
        """From any thread; raises `RuntimeError` when the event loop was closed."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self) -> str | None:
        """The next item.

        Raises:
            RuntimeError: Another event loop runs: nothing that is put in would wake this one.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("stream: expected the event loop that it was made in, got another")
        return await self._queue.get()


class AsyncStream(AsyncIterator[str]):
    """The text of one request, piece by piece.

    The request ends with its stream, however that ends: read to the end, closed, its task
    cancelled, or dropped.

    Args:
        batch: The request.
        pieces: What it says; None at the end.
    """

    def __init__(self, batch: Batch, pieces: _Mailbox) -> None:
        self._batch, self._pieces = batch, pieces
        (self._generation,) = batch.generations

    @property
    def completion(self) -> Completion:
        """What has become of the prompt so far; final when the stream has ended."""
        return self._generation.completion

    async def __anext__(self) -> str:
        try:
            piece = await self._pieces.get()
        except BaseException:  # its task was cancelled
            self._batch.abort()
            raise
        if piece is None:
            # if it is asked again
            self._pieces.put(None)
            self._generation.raise_errors()
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Ends the request, if it hasn't ended; its blocks are free then."""
        self._batch.abort()
        while await self._pieces.get() is not None:
            pass
        self._pieces.put(None)
