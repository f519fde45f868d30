"""Text generation: prompts in, text out, whatever engine computes the tokens."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from blockstride.kernels.checks import expect
from blockstride.models.engine import Request, SamplingParams, TokenEvent
from blockstride.models.engine.request import FinishReason
from blockstride.models.text_stream import TextStream

LONG_PROMPT = 4096
"""Tokens from which a single prompt gets a progress bar."""


@runtime_checkable
class TokenEngine(Protocol):
    """What turns requests into tokens; see `Engine`."""

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams) -> Request:
        """Queues a request."""
        ...

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Ends a request now."""
        ...

    def step(self) -> list[TokenEvent]:
        """Goes on with all requests, and returns the tokens that this has brought."""
        ...


TokenEngineType = TypeVar("TokenEngineType", bound=TokenEngine)
# not typing.Self, which beartype accepts in decorated classes only
Generator = TypeVar("Generator", bound="TextGenerator")


@dataclass(frozen=True)
class Completion:
    """What became of a prompt.

    Attributes:
        prompt: The prompt.
        text: Its continuation, without the stop text that ended it.
        token_ids: The tokens generated, an end token included.
        num_prompt_tokens: Tokens of the prompt.
        finish_reason: `"stop"`, `"length"`, `"abort"` or `"error"`; see `FinishReason`.
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: FinishReason


class TextGenerator(Generic[TokenEngineType]):
    """A tokenizer and an engine.

    Args:
        tokenizer: Makes tokens of text, and text of tokens; None where a checkpoint has none.
        engine: Continues tokens.
        default_params: How to continue prompts where a caller doesn't say.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        engine: TokenEngineType,
        default_params: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    ) -> None:
        self._tokenizer, self.engine = tokenizer, engine
        self.default_params = default_params

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text, and text of tokens.

        Raises:
            ValueError: The checkpoint has none.
        """
        expect(
            self._tokenizer is not None, "tokenizer", "a tokenizer.json in the checkpoint", "none"
        )
        assert self._tokenizer is not None
        return self._tokenizer

    def close(self) -> None:
        """Ends what the engine needs beyond this process, if anything."""

    def __enter__(self: Generator) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: str | Sequence[str],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Continues every prompt; they run together, as many as the engine holds.

        Args:
            prompts: One prompt or several.
            params: How to continue them: one for all, or one each; `default_params`, which are
                the checkpoint's, when None.
            progress: Show a bar on standard error when there are several prompts or a long one.

        Returns:
            One completion a prompt, in order.

        Raises:
            ValueError: A prompt is empty or longer than the cache; nothing has run then.
        """
        return list(self.completions(prompts, params, progress=progress))

    def completions(
        self,
        prompts: str | Sequence[str],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> Iterator[Completion]:
        """As `generate`, and yields each completion when it and those before it are done.

        Closing the iterator ends the requests that are left.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not isinstance(params, Sequence):
            params = [params or self.default_params] * len(prompts)
        expect(
            len(params) == len(prompts), "params", f"one for each of {len(prompts)}", len(params)
        )
        streams = self._submit(prompts, params)
        return self._completions(prompts, streams, progress)

    def _completions(
        self, prompts: Sequence[str], streams: dict[int, TextStream], progress: bool
    ) -> Iterator[Completion]:
        waiting = list(zip(prompts, streams.values(), strict=True))[::-1]
        try:
            with _Bar(progress, [stream.request for stream in streams.values()]) as bar:
                for _ in self._run(streams):
                    bar.update()
                    while waiting and waiting[-1][1].request.finish_reason is not None:
                        with bar.hidden():
                            yield _completion(*waiting.pop())
        finally:
            for stream in streams.values():
                self.engine.abort(stream.request)
        # what the last step has ended without a token
        for prompt, stream in reversed(waiting):
            yield _completion(prompt, stream)

    def stream(self, prompt: str, params: SamplingParams | None = None) -> Iterator[str]:
        """Continues one prompt and yields its text piece by piece, as it is decided.

        Closing the iterator ends the request.

        Raises:
            ValueError: The prompt is empty or longer than the cache.
        """
        streams = self._submit([prompt], [params or self.default_params])
        return self._pieces(streams)

    def _pieces(self, streams: dict[int, TextStream]) -> Iterator[str]:
        try:
            for piece in self._run(streams):
                if piece:
                    yield piece
        finally:
            for stream in streams.values():
                self.engine.abort(stream.request)

    def _submit(
        self, prompts: Sequence[str], params: Sequence[SamplingParams]
    ) -> dict[int, TextStream]:
        """Queues all prompts or none."""
        streams: dict[int, TextStream] = {}
        try:
            for prompt, param in zip(prompts, params, strict=True):
                # a tokenizer may make a start token of it
                expect(bool(prompt), "prompt", "some text", "an empty prompt")
                request = self.engine.add_request(self.tokenizer.encode(prompt).ids, param)
                streams[request.request_id] = TextStream(request, self.tokenizer)
        except Exception:
            for stream in streams.values():
                self.engine.abort(stream.request)
            raise
        return streams

    def _run(self, streams: dict[int, TextStream]) -> Iterator[str]:
        """Steps until all streams are done, with the text that each token, or step, decided."""
        while any(stream.request.finish_reason is None for stream in streams.values()):
            events: list[TokenEvent] = self.engine.step()
            for event in events:
                stream = streams.get(event.request.request_id)
                if stream is None:
                    continue
                piece = stream.push(event.token_id)
                if stream.stopped:
                    self.engine.abort(event.request, "stop")
                yield piece
            if not events:
                yield ""


def _completion(prompt: str, stream: TextStream) -> Completion:
    request = stream.request
    return Completion(
        prompt,
        stream.text,
        tuple(request.output_ids),
        len(request.prompt_ids),
        request.finish_reason or "abort",
    )


class _Bar:
    """A progress bar over the prompt tokens and at most `max_tokens` of every request."""

    def __init__(self, wanted: bool, requests: list[Request]) -> None:
        self.requests = requests
        console = Console(stderr=True)
        long = any(len(request.prompt_ids) >= LONG_PROMPT for request in requests)
        self._is_shown = wanted and console.is_terminal and (len(requests) > 1 or long)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._is_shown,
            transient=True,
            # what is written meanwhile goes where it is meant to
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> _Bar:
        self._show()
        self.task = self.progress.add_task(
            "generating", total=sum(r.max_len for r in self.requests)
        )
        return self

    def update(self) -> None:
        """Shows how far the requests are; one that is finished counts whole."""
        done = sum(r.max_len if r.finish_reason else r.num_cached for r in self.requests)
        self.progress.update(self.task, completed=done)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Leaves the terminal to others for a while."""
        self._hide()
        yield
        self._show()

    def __exit__(self, *_: object) -> None:
        self._hide()

    def _show(self) -> None:
        if self._is_shown:
            # it hides the cursor, also from whoever comes after a signal
            atexit.register(self.progress.stop)
            self.progress.start()

    def _hide(self) -> None:
        if self._is_shown:
            self.progress.stop()
            atexit.unregister(self.progress.stop)
