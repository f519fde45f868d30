"""`blockstride chat`: talk to a model, in this process or at a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from blockstride.checks import expect
from blockstride.models.commands.engine_options import add_engine, add_model, engine_names, load_llm
from blockstride.models.commands.output import say, write
from blockstride.models.commands.prompts import expect_text
from blockstride.models.commands.remote_chat import remote_answers
from blockstride.models.commands.sampling_options import (
    SAMPLING_HELP,
    add_sampling,
    given_sampling,
)
from blockstride.models.hub import find_checkpoint

Message = Mapping[str, str]
Answer = Callable[[list[Message]], Iterator[str]]
"""The text of an answer to a conversation, piece by piece."""

PROMPT = "> "
FORGET, LEAVE = "/new", "/exit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, is_required=False)
    parser.add_argument(
        "--server",
        metavar="URL",
        help="an OpenAI-compatible server instead of a model here, as in http://localhost:8000/v1; "
        "--model names one of its models then; its key is that of OPENAI_API_KEY",
    )
    parser.add_argument("--system", help="what the system says before all else")
    add_sampling(parser.add_argument_group("sampling", SAMPLING_HELP))
    add_engine(parser)


def option_names(args: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return engine_names(args)


def run(args: argparse.Namespace) -> int:
    """Answers one line after the other, until there is none.

    Returns:
        1 if any wasn't answered, else 0.
    """
    expect(bool(args.model or args.server), "--model", "a checkpoint, or --server", "neither")
    if args.system is not None:
        expect_text("--system", args.system)
    with _answerer(args) as answer:
        return _talk(answer, args.system)


@contextmanager
def _answerer(args: argparse.Namespace) -> Iterator[Answer]:
    """What answers, as the options say."""
    given = given_sampling(args)
    expect(given.get("n", 1) == 1, "--n", "1 in a chat", given.get("n"))
    if args.server is not None:
        with remote_answers(args.server, args.model, given) as answer:
            yield answer
        return
    folder = find_checkpoint(args.model, revision=args.revision, download=args.download)
    with load_llm(args, folder) as llm:
        params = replace(llm.default_params, **given)
        # a checkpoint without a template is told before anybody has typed anything
        llm.chat_prompt([{"role": "user", "content": "a"}])
        yield lambda messages: llm.stream(llm.chat_prompt(messages), params)


def _talk(answer: Answer, system: str | None) -> int:
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages, has_failed = list(start), False
    is_seen = sys.stdin.isatty()
    if is_seen:
        # lines can be edited, and earlier ones recalled
        with suppress(ImportError):
            __import__("readline")
        say(f"{FORGET} forgets what was said, {LEAVE} or Ctrl-D ends")
    while (text := _read(is_seen)) not in (None, LEAVE):
        if text == FORGET:
            messages = list(start)
        if not text.strip() or text == FORGET:
            continue
        expect_text("standard input", text)
        messages.append({"role": "user", "content": text})
        try:
            messages.append({"role": "assistant", "content": _write(answer(messages))})
        except (ValueError, RuntimeError, OSError) as error:
            has_failed = True
            messages.pop()
            say(f"blockstride chat: {' '.join(str(error).split())}")
    return int(has_failed)


def _read(is_seen: bool) -> Any:
    """A line, or None at the end."""
    try:
        return input(PROMPT if is_seen else "")
    except EOFError:
        if is_seen:
            write("\n")
        return None


def _write(pieces: Iterator[str]) -> str:
    """Writes an answer as it comes, and returns all of it."""
    said = []
    try:
        for piece in pieces:
            said.append(piece)
            write(piece)
    finally:
        write("\n")
    return "".join(said)
