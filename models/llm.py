"""LLM: prompts in, text out, by an engine in this process or engines in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer

from blockstride.checks import expect
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.detokenizer import Detokenizer, TokenDecoder
from blockstride.models.distributed import Deployment
from blockstride.models.distributed.deployment import TIMEOUT_SECONDS, TransferWay
from blockstride.models.engine import Engine, EngineConfig, EngineReport, SamplingParams
from blockstride.models.engine.values import expect_type
from blockstride.models.engine_loop import EngineLoop
from blockstride.models.generation import Batch, Completion, Completions, Generation, Stream
from blockstride.models.generation_defaults import default_params
from blockstride.models.loading import default_device, load_model
from blockstride.models.progress_bar import ProgressBar
from blockstride.models.prompts import Prompt, as_prompt, encode, list_params, list_prompts
from blockstride.models.text_stream import TextStream
from blockstride.transfer.connector import ConnectorSettings

logger = logging.getLogger(__name__)

Configs = EngineConfig | Sequence[EngineConfig]
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
        path: Hugging Face checkpoint folder of Jamba, a Granite hybrid or Bamba. Without a
            tokenizer.json, prompts are tokens.
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
    ) -> None:
        prompts = _configs(prefill, "prefill")
        has_roles = bool(prompts) or decode is not None
        is_clear = config is None or not has_roles
        expect(is_clear, "config", "None beside prefill and decode", config)
        config = EngineConfig() if config is None else config
        expect_type(config, "config", EngineConfig, "an EngineConfig")
        answers = [config] if decode is None else _configs(decode, "decode")
        checkpoint = Checkpoint(path)
        self._tokenizer, params = checkpoint.tokenizer(), default_params(checkpoint.generation)
        if self._tokenizer is None and params.stop:
            logger.warning("stop texts %s need a tokenizer.json: unused", params.stop)
            params = replace(params, stop=())
        self.default_params = params
        self._decoder = None if self._tokenizer is None else TokenDecoder(self._tokenizer)
        if has_roles or config.tp_size > 1:
            self.engine = Deployment(
                path,
                prefill=prompts,
                decode=answers,
                dtype=dtype,
                device=str(device or default_device()),
                transfer=transfer,
                timeout_seconds=timeout_seconds,
            )
        else:
            self.engine = Engine(load_model(checkpoint, config, dtype=dtype, device=device), config)
            self.engine.warm_up()
        self._loop = EngineLoop(self.engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text, and text of tokens.

        Raises:
            ValueError: The checkpoint has none.
        """
        has_one = self._tokenizer is not None
        expect(has_one, "tokenizer", "a tokenizer.json in the checkpoint", "none")
        assert self._tokenizer is not None
        return self._tokenizer

    def close(self) -> None:
        """Ends all requests, with an error for those who wait, and all processes."""
        self._loop.close()
        self.engine.close()

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
        if not progress:
            return Completions(batch)
        return Completions(batch, ProgressBar(batch.generations, self.engine.limits.max_len).wait)

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
        generations = [
            self._generation(prompt, its_params, on_piece, on_done)
            for prompt, its_params in zip(given, each, strict=True)
        ]
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


def _configs(given: object, name: str) -> list[EngineConfig]:
    """One engine or several, as a list."""
    configs = [given] if isinstance(given, EngineConfig) else given
    expect_type(configs, name, (list, tuple), "an EngineConfig or several")
    for config in configs:  # type: ignore[union-attr]
        expect_type(config, name, EngineConfig, "an EngineConfig or several")
    return list(configs)  # type: ignore[call-overload]
