"""Answers of a model on standard output, as soon as each is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockstride.models.commands.output import write
from blockstride.models.engine import SamplingParams
from blockstride.models.generation import Completion
from blockstride.models.llm import LLM


def write_answers(
    llm: LLM,
    prompts: Sequence[str] | Sequence[tuple[int, ...]],
    params: SamplingParams,
) -> Iterator[Completion]:
    """Writes what becomes of every prompt, in order, and yields it when it is written.

    A text is written with its prompt, piece by piece where it is the only one; of tokens only the
    new ones are written, a line a prompt.
    """
    if len(prompts) == 1 and isinstance(prompts[0], str):
        yield _write_stream(llm, prompts[0], params)
        return
    for completion in llm.completions(prompts, params, progress=True):
        if isinstance(completion.prompt, str):
            write(f"{completion.prompt}{completion.text}\n")
        else:
            write(",".join(map(str, completion.token_ids)) + "\n")
        yield completion


def _write_stream(llm: LLM, prompt: str, params: SamplingParams) -> Completion:
    pieces = llm.stream(prompt, params)
    write(prompt)
    try:
        for piece in pieces:
            write(piece)
    finally:
        # what goes wrong is told in a line of its own
        write("\n")
    return pieces.completion
