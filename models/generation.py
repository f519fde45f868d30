"""A request as its caller sees it: a generation, which is read whole or as a stream of text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event
from typing import Any

from blockstride.models.engine import SamplingParams, TokenLogprobs
from blockstride.models.engine.request import FinishReason
from blockstride.models.engine_loop import EngineLoop, Submission
from blockstride.models.text_stream import TextStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completion:
    """What became of a prompt.

    Attributes:
        prompt: The prompt, as it was given.
        text: Its continuation, without the stop text or stop token that ended it unless
            `include_stop` asks for that; "" without a tokenizer.
        token_ids: The tokens generated, an end token included.
        num_prompt_tokens: Tokens of the prompt.
        finish_reason: `"stop"`, `"length"`, `"abort"` or `"error"`; see `FinishReason`.
        error: What went wrong, in words, where that is `"error"`.
        index: Which of the `n` answers to the prompt it is, from 0.
        logprobs: How likely each of `token_ids` was; None where `logprobs` doesn't ask.
        prompt_logprobs: How likely each token of the prompt was, None for the first, which nothing
            comes before; None where `prompt_logprobs` doesn't ask, or it isn't computed yet.
    """

    prompt: str | tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    finish_reason: FinishReason
    error: str = ""
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


class Generation(Submission):
    """A prompt that is being continued. The loop's thread updates it; any thread may read it.

    Args:
        prompt: As it was given.
        prompt_ids: Its tokens.
        params: How to continue it.
        text: Makes text of tokens.
        on_piece: Called with text that is final, on the loop's thread; if it raises, nobody reads
            any more, and the request ends.
        on_done: Called once it is over, on the loop's thread.
        index: Which answer to the prompt it is.
        on_token: Called after each token, when text has been made of it, as `on_piece`.

    Attributes:
        done: Whether it is over.
        error: Why the engine didn't complete it, if so.
        text_error: Why its tokens have no text from some point on, if so.
    """

    def __init__(
        self,
        prompt: str | tuple[int, ...],
        prompt_ids: Sequence[int],
        params: SamplingParams,
        text: TextStream,
        on_piece: Callable[[str], Any] | None = None,
        on_done: Callable[[], Any] | None = None,
        index: int = 0,
        on_token: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(prompt_ids, params)
        self._index = index
        self.done = Event()
        self.error: BaseException | None = None
        self.text_error: RuntimeError | None = None
        self._prompt, self._text = prompt, text
        self._on_piece, self._on_done, self._on_token = on_piece, on_done, on_token
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason = "abort"

    @property
    def completion(self) -> Completion:
        """What has become of it so far; final when it is done."""
        return Completion(
            self._prompt,
            self._text.text,
            tuple(self._token_ids),
            len(self.prompt_ids),
            self._finish_reason,
            self._error_text(),
            self._index,
            *self._logprobs(),
        )

    def _logprobs(self) -> tuple[Any, Any]:
        """What is known of the tokens and of those of the prompt, as far as it is asked for."""
        told, of_prompt = (), ()
        if self.request is not None:
            told, of_prompt = self.request.logprobs, self.request.prompt_logprobs
        is_scored = len(of_prompt) == len(self.prompt_ids) - 1
        return (
            None if self.params.logprobs is None else tuple(told[: len(self._token_ids)]),
            (None, *of_prompt) if self.params.prompt_logprobs is not None and is_scored else None,
        )

    def _error_text(self) -> str:
        if self.text_error is not None:
            return str(self.text_error)
        return "" if self.request is None else self.request.error

    def result(self) -> Completion:
        """The completion; raises what the engine raised, but not that tokens have no text."""
        if self.error is not None:
            raise self.error
        return self.completion

    def raise_errors(self) -> None:
        """Raises what the engine raised, or why tokens have no text."""
        error = self.error or self.text_error
        if error is not None:
            raise error

    def news(self, num_tokens: int, num_pieces: int) -> tuple[list[int], list[str]]:
        """The tokens and the pieces of text from some numbers of them on; any thread may ask."""
        return self._token_ids[num_tokens:], self._text.pieces[num_pieces:]

    @property
    def num_computed(self) -> int:
        """Tokens of prompt and output that are computed."""
        return 0 if self.request is None else self.request.num_cached

    def on_token(self, token_id: int) -> FinishReason | None:
        """See `Submission`."""
        self._token_ids.append(token_id)
        reason = self._read(token_id)
        if reason is None and self._on_token is not None and not _call(self._on_token):
            return "abort"
        return reason

    def _read(self, token_id: int) -> FinishReason | None:
        """Makes text of a token; a reason if the request is to end with it."""
        is_end = self.request is not None and self.request.finish_reason == "stop"
        if is_end and not self.params.include_stop:
            return None
        is_read = self._extend(lambda: self._text.push(token_id))
        if self.text_error is not None:
            return "error"
        if self._text.stopped:
            return "stop"
        return None if is_read else "abort"

    def on_end(self, reason: FinishReason) -> None:
        """See `Submission`."""
        self._extend(self._text.finish)
        reason = reason if self.text_error is None else "error"
        # it may have been the last token allowed
        self._finish_reason = "stop" if self._text.stopped else reason
        self._end()

    def on_error(self, error: BaseException) -> None:
        """See `Submission`."""
        self.error = error
        self._end()

    def _extend(self, decode: Callable[[], str]) -> bool:
        """Extends the text, unless decoding has failed before; whether somebody still reads it."""
        if self.text_error is not None:
            return True
        try:
            piece = decode()
        except BaseException as error:  # tokenizers raise some that are no Exception
            self.text_error = RuntimeError(f"text: expected some for all tokens, got {error!r}")
            self.text_error.__cause__ = error
            logger.info("%s", self.text_error)
            return True
        return not piece or self._on_piece is None or _call(self._on_piece, piece)

    def _end(self) -> None:
        self.done.set()
        if self._on_done is not None:
            _call(self._on_done)


def _call(listener: Callable[..., Any], *arguments: object) -> bool:
    """Whether somebody listens: an event loop that was closed has no one who does."""
    try:
        listener(*arguments)
    except Exception:
        logger.debug("nobody waits for a request any more", exc_info=True)
        return False
    return True


class Batch:
    """The requests of one call, which end with it: when it is closed, or nobody holds it any more.

    Args:
        loop: Runs them.
        generations: The requests.

    Raises:
        RuntimeError: See `EngineLoop.submit`.
    """

    def __init__(self, loop: EngineLoop, generations: Sequence[Generation]) -> None:
        self.generations = generations
        self._loop = loop
        if generations:
            loop.submit(generations)

    def abort(self) -> None:
        """Ends what isn't done, without waiting for it."""
        for generation in self.generations:
            if not generation.done.is_set():
                self._loop.abort(generation)

    def close(self) -> None:
        """Ends what isn't done; all blocks are free then."""
        self.abort()
        for generation in self.generations:
            generation.done.wait()

    def __del__(self) -> None:
        # may run on any thread, in the middle of anything
        self.abort()


class Stream(Iterator[str]):
    """The text of one request, piece by piece.

    The request ends with its stream, however that ends: read to the end, closed, interrupted,
    or dropped.

    Args:
        batch: The request.
        pieces: What it says; None at the end.
    """

    def __init__(self, batch: Batch, pieces: SimpleQueue[str | None]) -> None:
        self._batch, self._pieces = batch, pieces
        (self._generation,) = batch.generations

    @property
    def completion(self) -> Completion:
        """What has become of the prompt so far; final when the stream has ended."""
        return self._generation.completion

    def __next__(self) -> str:
        try:
            piece = self._pieces.get()
        except BaseException:  # an interrupt
            self._batch.abort()
            raise
        if piece is None:
            # for others that read the same stream, or this one if it asks again
            self._pieces.put(None)
            self._generation.raise_errors()
            raise StopIteration
        return piece

    def close(self) -> None:
        """Ends the request, if it hasn't ended; its blocks are free then."""
        self._batch.close()


class Completions(Iterator[Completion]):
    """The completions of several prompts, each when it and those before it are done.

    The requests end with it, as with a `Stream`.

    Args:
        batch: The requests.
        wait: Waits until one is done.
    """

    def __init__(
        self, batch: Batch, wait: Callable[[Generation], object] = lambda each: each.done.wait()
    ) -> None:
        self._batch, self._wait = batch, wait
        self._left = iter(batch.generations)

    def __next__(self) -> Completion:
        generation = next(self._left)
        try:
            self._wait(generation)
        except BaseException:  # an interrupt
            self._batch.abort()
            raise
        return generation.result()

    def close(self) -> None:
        """Ends the requests that are left; their blocks are free then."""
        self._batch.close()
