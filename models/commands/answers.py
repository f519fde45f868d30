"""Answers of a model on standard output, as soon as each is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Literal

from blockstride.models.commands.output import write
from blockstride.models.engine import SamplingParams
from blockstride.models.generation import Completion
from blockstride.models.llm import LLM
from blockstride.models.progress_bar import ProgressBar

Style = Literal["text", "answer", "tokens", "json"]
"""What is written: a prompt with its continuation, that alone, its tokens, or all as JSON."""

STREAMED = ("text", "answer")


class Answers(Iterator[Completion]):
    """Writes what becomes of every prompt, in order, and yields it when it is written.

    Text is written piece by piece, tokens and JSON in a line an answer. All prompts run together,
    whichever is being written.

    Args:
        llm: The model.
        asked: The prompts, as the model is given them.
        prompts: The prompts, as they are told.
        params: How to continue them.
        style: What is written.

    Raises:
        TypeError, ValueError, RuntimeError: As `LLM.generate`.
    """

    def __init__(
        self,
        llm: LLM,
        asked: Sequence[str] | Sequence[tuple[int, ...]],
        prompts: Sequence[str] | Sequence[tuple[int, ...]],
        params: SamplingParams,
        style: Style,
    ) -> None:
        self._style: Style = style
        self._n = params.n
        self._prompts = [prompt for prompt in prompts for _ in range(params.n)]
        self._news: SimpleQueue[None] = SimpleQueue()

        def tell() -> None:
            self._news.put(None)

        listener = tell if style in STREAMED else None
        self._batch = llm.submit(asked, params, on_token=listener, on_done=listener)
        self._all = self._batch.generations
        self._bar = ProgressBar(self._all, llm.engine.limits.max_len)
        # the answer that is next, and how many characters of it are written
        self._place = (0, 0)

    def __next__(self) -> Completion:
        at, _ = self._place
        if at == len(self._all):
            raise StopIteration
        generation = self._all[at]
        try:
            if self._style in STREAMED:
                self._write_stream(at)
            else:
                self._bar.wait(generation)
                generation.result()
                write(self._line(at))
        except BaseException:  # an interrupt
            self._batch.abort()
            raise
        self._place = (at + 1, 0)
        return generation.completion

    def _write_stream(self, at: int) -> None:
        """Writes an answer as it grows, and ends its line whatever becomes of it."""
        generation = self._all[at]
        while not generation.done.is_set():
            self._write_more(at)
            self._news.get()
        self._write_more(at)
        # what goes wrong is told in a line of its own
        write("\n")
        self._place = (at + 1, 0)
        if len(self._all) == 1:
            generation.raise_errors()
        generation.result()

    def _write_more(self, at: int) -> None:
        line = self._line(at)[:-1]
        write(line[self._place[1] :])
        self._place = (at, len(line))

    def rest(self) -> str:
        """What the answers that aren't written have so far, as far as they have any token."""
        at, written = self._place
        begun = [i for i in range(at, len(self._all)) if self._all[i].completion.token_ids]
        if written and at not in begun:
            begun.insert(0, at)
        return "".join(map(self._line, begun))[written:]

    def _line(self, at: int) -> str:
        """All that is written of an answer, as it is by now."""
        completion, prompt = self._all[at].completion, self._prompts[at]
        if self._style == "tokens":
            return ",".join(map(str, completion.token_ids)) + "\n"
        if self._style == "json":
            return (
                json.dumps(_as_json(completion, prompt, 1 + at // self._n), ensure_ascii=False)
                + "\n"
            )
        is_told = self._style == "text" and isinstance(prompt, str)
        return f"{prompt if is_told else ''}{completion.text}\n"


def _as_json(completion: Completion, prompt: Any, number: int) -> dict[str, Any]:
    """An answer as one object; `number` says which prompt it is to, from 1."""
    given, made = completion.num_prompt_tokens, len(completion.token_ids)
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    told = {
        "number": number,
        "index": completion.index,
        "prompt": prompt,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "usage": usage,
    }
    return {**told, "error": completion.error} if completion.error else told
