"""What callers may give as prompts and parameters, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from blockstride.checks import expect
from blockstride.models.engine import SamplingParams
from blockstride.models.engine.values import expect_type

Prompt = str | Sequence[int]
"""Text, or tokens."""


def list_prompts(prompts: object) -> list[str | tuple[int, ...]]:
    """One prompt or several as a list.

    Args:
        prompts: A text, tokens, or anything that yields texts and lists of tokens in some order.

    Raises:
        TypeError: Something else.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, np.ndarray | Tensor):
        prompts = prompts.tolist()
    unordered = isinstance(prompts, Mapping | Set | bytes | bytearray)
    several = isinstance(prompts, Iterable) and not unordered
    expect(several, "prompts", "a prompt or several in order", repr(prompts), TypeError)
    given: list[Any] = list(prompts)  # type: ignore[call-overload]
    if given and all(_is_token(token) for token in given):
        return [_tokens(given)]
    return [as_prompt(prompt) for prompt in given]


def _is_token(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_prompt(prompt: object) -> str | tuple[int, ...]:
    """One prompt.

    Raises:
        TypeError: It is neither text nor a sequence of tokens.
    """
    return prompt if isinstance(prompt, str) else _tokens(prompt)


def _tokens(prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, np.ndarray | Tensor):
        prompt = prompt.tolist()
    expected = "text or a sequence of tokens"
    is_sequence = isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray)
    expect(is_sequence, "prompt", expected, repr(prompt), TypeError)
    tokens: Sequence[Any] = prompt  # type: ignore[assignment]
    for token in tokens:
        expect(_is_token(token), "prompt", expected, f"{token!r} in it", TypeError)
    return tuple(map(int, tokens))


def list_params(params: object, count: int) -> list[SamplingParams]:
    """Parameters of `count` prompts.

    Args:
        params: One for all, or one each.
        count: Number of prompts.

    Raises:
        TypeError: Something else.
        ValueError: More or fewer than prompts.
    """
    if isinstance(params, SamplingParams):
        return [params] * count
    expected = "SamplingParams, or one for each prompt"
    expect_type(params, "params", (list, tuple), expected)
    each: Sequence[SamplingParams] = params  # type: ignore[assignment]
    for param in each:
        expect_type(param, "params", SamplingParams, expected)
    expect(len(each) == count, "params", f"one for each of {count}", len(each))
    return list(each)


def encode(
    tokenizer: Tokenizer | None, prompt: str | tuple[int, ...], *, add_special_tokens: bool = True
) -> Sequence[int]:
    """The tokens of a prompt.

    Args:
        tokenizer: Makes them of text.
        prompt: Text, or tokens already.
        add_special_tokens: Whether text gets the tokens that texts of the model begin with.

    Raises:
        ValueError: No text, text that isn't Unicode, or any where there is no tokenizer.
    """
    if not isinstance(prompt, str):
        return prompt
    # a tokenizer may make a start token of it
    expect(bool(prompt), "prompt", "some text", "an empty prompt")
    if tokenizer is None:
        expected = "tokens, as the checkpoint has no tokenizer.json"
        expect(False, "prompt", expected, "text")
        return ()
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        # half of a surrogate pair, which is how Python keeps bytes that are no text
        wrong = repr(prompt[error.start : error.end])
        raise ValueError(f"prompt: expected Unicode text, got {wrong} in it") from None
    return tokenizer.encode(prompt, add_special_tokens=add_special_tokens).ids
