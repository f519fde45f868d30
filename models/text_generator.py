"""Text generation: prompts in, text out, whatever engine computes the tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from tokenizers import Tokenizer

from blockstride.checks import expect
from blockstride.models.detokenizer import Detokenizer, TokenDecoder
from blockstride.models.engine import SamplingParams
from blockstride.models.engine_loop import EngineLoop, TokenEngine
from blockstride.models.generation import Batch, Completion, Generation
from blockstride.models.progress_bar import ProgressBar
from blockstride.models.prompts import Prompt, as_prompt, encode, list_params, list_prompts
from blockstride.models.streams import Completions, Stream
from blockstride.models.text_stream import TextStream

logger = logging.getLogger(__name__)

TokenEngineType = TypeVar("TokenEngineType", bound=TokenEngine)
# not typing.Self, which beartype accepts in decorated classes only
Generator = TypeVar("Generator", bound="TextGenerator")


class TextGenerator(Generic[TokenEngineType]):
    """A tokenizer and an engine, for callers on any number of threads.

    All of them are served together, by one thread that owns the engine; each gets what it would get
    alone. A request ends with who asked for it: whatever becomes of an iterator or its thread, its
    blocks are freed.

    Args:
        tokenizer: Makes tokens of text, and text of tokens; None: prompts are tokens.
        engine: Continues tokens.
        default_params: How to continue prompts where a caller doesn't say; its stop texts are left
            out where there is no tokenizer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        engine: TokenEngineType,
        default_params: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    ) -> None:
        self._tokenizer, self.engine = tokenizer, engine
        if tokenizer is None and default_params.stop:
            logger.warning("stop texts %s need a tokenizer.json: unused", default_params.stop)
            default_params = replace(default_params, stop=())
        self.default_params = default_params
        self._decoder = None if tokenizer is None else TokenDecoder(tokenizer)
        self._loop = EngineLoop(engine)

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
        """Ends all requests, with an error for those who wait; none can be made any more."""
        self._loop.close()

    def __enter__(self: Generator) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        expect(False, "LLM", "to stay in the process that made it", "a copy or a pickle", TypeError)

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Continues every prompt; they run together, as many as the engine holds.

        Args:
            prompts: One prompt or several, each a text or a list of tokens.
            params: How to continue them: one for all, or one each; `default_params`, which are
                the checkpoint's, when None.
            progress: Show a bar on standard error when there are several prompts or a long one.

        Returns:
            One completion a prompt, in order.

        Raises:
            TypeError: Something else was given.
            ValueError: A prompt is empty, or longer than the model or the cache allows; nothing
                has run then.
            RuntimeError: It was closed, or the engine can't go on.
        """
        return list(self.completions(prompts, params, progress=progress))

    def completions(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> Completions:
        """As `generate`, and yields each completion when it and those before it are done.

        The requests run from now on; closing or dropping the iterator ends those that are left.
        """
        batch = self.submit(prompts, params)
        bar = ProgressBar(batch.generations, self.engine.limits.max_len) if progress else None
        return Completions(batch, bar)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Continues one prompt and yields its text piece by piece, as it is decided.

        The request runs from now on; closing or dropping the iterator ends it.

        Raises:
            TypeError, ValueError, RuntimeError: As `generate`.
        """
        pieces: SimpleQueue[str | None] = SimpleQueue()
        batch = self.submit(
            [as_prompt(prompt)], params, on_piece=pieces.put, on_done=lambda: pieces.put(None)
        )
        return Stream(batch, pieces)

    def submit(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_piece: Callable[[str], Any] | None = None,
        on_done: Callable[[], Any] | None = None,
    ) -> Batch:
        """Queues all prompts or none.

        Args:
            prompts: See `generate`.
            params: See `generate`.
            on_piece: Called for each piece of text, on the engine's thread: it mustn't wait, and
                what it raises ends the request.
            on_done: Called once a request, as the last thing.

        Raises:
            TypeError, ValueError, RuntimeError: As `generate`.
        """
        given = list_prompts(prompts)
        each = list_params(self.default_params if params is None else params, len(given))
        pairs = zip(given, each, strict=True)
        generations = [self._generation(*pair, on_piece, on_done) for pair in pairs]
        return Batch(self._loop, generations)

    def _generation(
        self,
        prompt: str | tuple[int, ...],
        params: SamplingParams,
        on_piece: Callable[[str], Any] | None,
        on_done: Callable[[], Any] | None,
    ) -> Generation:
        prompt_ids = encode(self._tokenizer, prompt)
        self.engine.limits.check(prompt_ids)
        detokenizer = None
        if self._decoder is not None:
            detokenizer = Detokenizer(self._decoder, prompt_ids)
        no_stop = not params.stop or detokenizer is not None
        expect(no_stop, "stop", "none, as the checkpoint has no tokenizer.json", params.stop)
        text = TextStream(detokenizer, params.stop)
        return Generation(prompt, prompt_ids, params, text, on_piece, on_done)
