"""Prompts as they are typed, or lie in a file."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

from blockstride.checks import expect
from blockstride.models.commands.values import whole

OPTION = "--prompt-file"


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
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{OPTION}: expected a file that can be read, got {file}: {error.strerror}"
        ) from error
    name = "standard input" if file == "-" else file
    lines = (
        content.removeprefix(BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    )
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            byte = f"the byte {line[error.start]:#04x} in line {number} of {name}"
            raise ValueError(f"{OPTION}: expected text in UTF-8, got {byte}") from error
    prompts = [prompt for prompt in prompts if prompt.strip(" \t")]
    expect(bool(prompts), OPTION, "at least one line with a prompt", f"none in {name}")
    return prompts
