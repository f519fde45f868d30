"""Prompts as they are typed, or lie in a file."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockstride.checks import expect
from blockstride.models.commands.values import whole

OPTION, JSON_OPTION = "--prompt-file", "--prompt-jsonl"


def typed_prompts(prompts: Sequence[str]) -> list[str]:
    """Prompts of a command line.

    Raises:
        ValueError: One is empty, or isn't text.
    """
    for prompt in prompts:
        expect(bool(prompt), "--prompt", "some text", "an empty prompt")
        expect_text("--prompt", prompt)
    return list(prompts)


def typed_tokens(text: str) -> tuple[int, ...]:
    """A prompt of tokens, from `1,2,3`.

    Raises:
        ArgumentTypeError: Something else.
    """
    return tuple(map(whole, text.split(",")))


def expect_text(option: str, text: str) -> None:
    """Raise `ValueError` unless the bytes that were typed were UTF-8."""
    # Python keeps bytes that are no text as halves of surrogate pairs
    odd = [f"{ord(sign) & 0xFF:#04x}" for sign in text if "\ud800" <= sign <= "\udfff"]
    expect(not odd, option, "text in UTF-8", f"the byte {odd[0]}" if odd else "")


def read_prompts(file: str) -> list[str]:
    r"""The prompts of a file, one a line, those that are not blank.

    A line ends with `\n`, `\r\n` or `\r`, and nothing else: form feeds and the separators of
    Unicode are text. A byte order mark is not.

    Args:
        file: Its path; `-` for standard input.

    Raises:
        ValueError: It can't be read, holds bytes that are no UTF-8, or no prompt.
    """
    prompts = [line for _, line in _lines(OPTION, file) if line.strip(" \t")]
    expect(bool(prompts), OPTION, "at least one line with a prompt", f"none in {_name(file)}")
    return prompts


def read_json_prompts(file: str) -> list[str]:
    r"""The prompts of a file of JSON lines, each a string or an object with one as its `prompt`.

    Args:
        file: Its path; `-` for standard input.

    Raises:
        ValueError: It can't be read, has a line that is neither, an empty prompt, or none.
    """
    prompts = []
    for number, line in _lines(JSON_OPTION, file):
        if not line.strip(" \t"):
            continue
        where = f"in line {number} of {_name(file)}"
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{JSON_OPTION}: expected JSON, got {error} {where}") from error
        prompt: Any = value.get("prompt") if isinstance(value, dict) else value
        wanted = 'a string, or an object with a string as its "prompt"'
        expect(isinstance(prompt, str), JSON_OPTION, wanted, f"{line[:60]} {where}")
        expect(bool(prompt), JSON_OPTION, "some text", f"an empty prompt {where}")
        expect_text(JSON_OPTION, prompt)
        prompts.append(prompt)
    expect(bool(prompts), JSON_OPTION, "at least one line with a prompt", f"none in {_name(file)}")
    return prompts


def _name(file: str) -> str:
    return "standard input" if file == "-" else file


def _lines(option: str, file: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a file, which an option names."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{option}: expected a file that can be read, got {file}: {error.strerror}"
        ) from error
    lines = (
        content.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    )
    for number, line in enumerate(lines, 1):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"the byte {line[error.start]:#04x} in line {number} of {_name(file)}"
            raise ValueError(f"{option}: expected text in UTF-8, got {byte}") from error
