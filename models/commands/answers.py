"""Answers of a model on standard output, as soon as each is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from blockstride.models.commands.output import write
from blockstride.models.engine import SamplingParams
from blockstride.models.generation import Completion
from blockstride.models.llm import LLM

Style = Literal["text", "answer", "tokens"]
"""What is written: a prompt with its continuation, that alone, or its tokens."""


def write_answers(
    llm: LLM,
    prompts: Sequence[str] | Sequence[tuple[int, ...]],
    params: SamplingParams,
    style: Style,
) -> Iterator[Completion]:
    """Writes what becomes of every prompt, in order, and yields it when it is written.

    Text is written piece by piece where it is the only one; tokens in a line a prompt.
    """
    if len(prompts) == params.n == 1 and style != "tokens":
        yield _write_stream(llm, prompts[0], params, style)
        return
    for completion in llm.completions(prompts, params, progress=True):
        if style == "tokens":
            write(",".join(map(str, completion.token_ids)) + "\n")
        else:
            write(f"{_beginning(completion.prompt, style)}{completion.text}\n")
        yield completion


def _write_stream(
    llm: LLM, prompt: str | tuple[int, ...], params: SamplingParams, style: Style
) -> Completion:
    pieces = llm.stream(prompt, params)
    write(_beginning(prompt, style))
    try:
        for piece in pieces:
            write(piece)
    finally:
        # what goes wrong is told in a line of its own
        write("\n")
    return pieces.completion


def _beginning(prompt: str | tuple[int, ...], style: Style) -> str:
    return prompt if style == "text" and isinstance(prompt, str) else ""
