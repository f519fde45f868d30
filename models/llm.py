"""LLM: prompts in, text out, by an engine in this process or engines in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, Unpack

import torch
from tokenizers import Tokenizer

from blockstride.checks import expect
from blockstride.models.chat_template import Messages, TemplateOptions, conversations
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.distributed import Deployment
from blockstride.models.distributed.deployment import TIMEOUT_SECONDS, TransferWay
from blockstride.models.distributed.elastic import ElasticEngines
from blockstride.models.distributed.launcher import Launcher
from blockstride.models.engine import Engine, EngineConfig, EngineReport, SamplingParams
from blockstride.models.engine.sampling import answers
from blockstride.models.engine_arguments import Configs, read_engines
from blockstride.models.engine_loop import EngineLoop
from blockstride.models.engine_start import start_engines
from blockstride.models.generation import Batch, Completion, Completions, Generation, Stream
from blockstride.models.generation_defaults import default_params
from blockstride.models.hub import find_checkpoint
from blockstride.models.progress_bar import ProgressBar
from blockstride.models.prompts import Prompt, as_prompt, list_params, list_prompts
from blockstride.models.texts import Texts
from blockstride.transfer.connector import ConnectorSettings

logger = logging.getLogger(__name__)

# not typing.Self, which beartype accepts in decorated classes only
Self = TypeVar("Self", bound="LLM")


class LLM:
    """A model with its tokenizer, for callers on any number of threads.

    It runs in this process unless `config` asks for several ranks, or `prefill` or `decode` is
    given. Then every rank of every engine is a process on this machine. Prefill engines compute
    prompts and hand the caches over to decode engines by NIXL; TP sizes, block sizes, layouts,
    policies and types may all differ. A request gives the same tokens in any of these ways, up to
    the rounding of sums that ranks share.

    All callers are served together; each gets what it would get alone. A request ends with who
    asked for it: whatever becomes of an iterator or its thread, its blocks are freed.

    Use it as a context manager, or close it: processes run until then, or until this one ends.

    Args:
        path: Hugging Face checkpoint folder of a family that runs, or its name on the Hub, where
            that is cached; see `find_checkpoint`. Without a tokenizer.json, prompts are tokens.
        config: Layout, policy, types and sizes, where there is one engine; the defaults when None.
        prefill: One engine or several that compute prompts; none: decode engines do.
        decode: One engine or several that continue them; one with the defaults when None.
        dtype: See `load_model`.
        device: `"cpu"`, `"cuda"`, whose GPUs are dealt to ranks in turn, or one, as `"cuda:1"`; all
            GPUs when there are some and this is None.
        transfer: How sequences are handed over: `"pull"`, decode engines read them; `"push"`,
            prefill engines write them, so that decode engines have no bytes to move; or settings
            of the connectors.
        timeout_seconds: After how long without a heartbeat a process is given up, and other engines
            do its work.
        on: Where ranks run: on this machine when None, on the Ray cluster that it belongs to by
            `"ray"`, on another by `"ray://HOST:PORT"`; or what starts them, as a `RayLauncher`.
        restarts: How many engines are started anew that die, or whose machine is taken away.
        revision: Branch, tag or commit of a checkpoint that is named; None for `main`.
        download: Whether to get a checkpoint that is named, and not cached, from the Hub.

    Attributes:
        engine: What computes the tokens: an `Engine`, or the `Deployment` of several.
        default_params: How prompts are continued where a caller doesn't say: as
            generation_config.json, or else config.json, has it. `dataclasses.replace` changes some
            of them.

    Raises:
        ValueError: The checkpoint is missing, damaged, or not one that is supported, or the sizes
            can't work; the message says what was expected and what came.
        EngineDiedError: A process ended before it was ready.
        TimeoutError: A process wasn't ready in ten minutes.
    """

    # not a union: the arguments say which of the two it is, and callers know them
    engine: Any

    def __init__(
        self,
        path: str | Path,
        *,
        config: EngineConfig | None = None,
        prefill: Configs = (),
        decode: Configs | None = None,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        transfer: ConnectorSettings | TransferWay = "pull",
        timeout_seconds: float = TIMEOUT_SECONDS,
        on: str | Launcher | None = None,
        restarts: int = 0,
        revision: str | None = None,
        download: bool = False,
    ) -> None:
        engines = read_engines(config, prefill, decode, on, restarts)
        checkpoint = Checkpoint(find_checkpoint(path, revision=revision, download=download))
        self._texts, params = Texts(checkpoint), default_params(checkpoint.generation)
        if params.stop and not self._texts.has_tokenizer:
            logger.warning("stop texts %s need a tokenizer.json: unused", params.stop)
            params = replace(params, stop=())
        self.default_params = params
        self.engine = start_engines(
            engines,
            checkpoint,
            dtype=dtype,
            device=device,
            transfer=transfer,
            timeout_seconds=timeout_seconds,
            restarts=restarts,
        )
        self._loop = EngineLoop(self.engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text, and text of tokens.

        Raises:
            ValueError: The checkpoint has none.
        """
        return self._texts.tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is one; without it prompts and answers are tokens."""
        return self._texts.has_tokenizer

    def close(self) -> None:
        """Ends all requests, with an error for those who wait, and all processes."""
        self._loop.close()
        self.engine.close()

    @property
    def engines(self) -> ElasticEngines:
        """Adds and removes engines, while requests run.

        Raises:
            ValueError: There is one engine, in this process.
        """
        is_fleet = isinstance(self.engine, Deployment)
        expect(is_fleet, "engines", "some in processes of their own", "one in this process")
        return ElasticEngines(self.engine, self._loop)

    def reports(self) -> list[EngineReport]:
        """What every engine that lives has done so far, while no request is in flight."""
        if isinstance(self.engine, Engine):
            return [self.engine.report()]
        return self.engine.reports()

    def __enter__(self: Self) -> Self:
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
            params: How to continue them: one for all, or one each; `default_params` when None.
            progress: Show a bar on standard error when there are several prompts or a long one.

        Returns:
            One completion a prompt, in order; where params ask for `n` answers, so many in a row.

        Raises:
            TypeError: Something else was given.
            ValueError: A prompt is empty, or longer than the model or the cache allows; nothing
                has run then.
            RuntimeError: It was closed, or the engine can't go on.
        """
        return list(self.completions(prompts, params, progress=progress))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **options: Unpack[TemplateOptions],
    ) -> list[Completion]:
        """Answers a conversation, or several.

        Args:
            messages: See `chat_prompt`; or a list of such.
            params: See `generate`.
            progress: See `generate`.
            options: See `chat_prompt`.

        Raises:
            TypeError, ValueError, RuntimeError: As `chat_prompt` and `generate`.
        """
        prompts = [self.chat_prompt(each, **options) for each in conversations(messages)]
        return self.generate(prompts, params, progress=progress)

    def chat_prompt(
        self, messages: Messages, **options: Unpack[TemplateOptions]
    ) -> tuple[int, ...]:
        """A conversation as a prompt, for `generate`, `stream` and their like.

        Args:
            messages: The conversation, as in `[{"role": "user", "content": "Hello"}]`.
            options: What else `ChatTemplate.render` takes: tools, another template, ...

        Raises:
            TypeError: Something else was given.
            ValueError: The checkpoint has no chat template or no tokenizer, or the template
                refuses the messages.
        """
        return self._texts.chat_prompt(messages, **options)

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
        if not progress:
            return Completions(batch)
        return Completions(batch, ProgressBar(batch.generations, self.engine.limits.max_len).wait)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Continues one prompt and yields its text piece by piece, as it is decided.

        The request runs from now on; closing or dropping the iterator ends it.

        Raises:
            TypeError, ValueError, RuntimeError: As `generate`; also for more answers than one.
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
        on_token: Callable[[], Any] | None = None,
    ) -> Batch:
        """Queues all prompts or none.

        Args:
            prompts: See `generate`.
            params: See `generate`.
            on_piece: Called for each piece of text, on the engine's thread: it mustn't wait, and
                what it raises ends the request. It can't be told answers apart, so there is one.
            on_done: Called once a request, as the last thing.
            on_token: Called after each token of any request, as `on_piece`.

        Raises:
            TypeError, ValueError, RuntimeError: As `generate`.
        """
        given = list_prompts(prompts)
        each = list_params(self.default_params if params is None else params, len(given))
        generations = []
        for prompt, its_params in zip(given, each, strict=True):
            fits = on_piece is None or its_params.n == 1
            expect(fits, "n", "1 of a stream, which has one text", its_params.n)
            prompt_ids = self._texts.encode(prompt)
            for index, answer in enumerate(answers(its_params)):
                self.engine.limits.check(prompt_ids, answer)
                text = self._texts.stream(prompt_ids, answer)
                generations.append(
                    Generation(prompt, prompt_ids, answer, text, on_piece, on_done, index, on_token)
                )
        return Batch(self._loop, generations)
