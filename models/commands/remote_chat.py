"""Answers of a server that speaks OpenAI's language, by OpenAI's own client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from blockstride.checks import expect

TIMEOUT_SECONDS = 600.0
"""How long a server may say nothing."""

OPENAI = {
    "frequency_penalty",
    "logit_bias",
    "max_tokens",
    "presence_penalty",
    "seed",
    "stop",
    "temperature",
    "top_p",
}
"""What OpenAI's client knows of sampling; servers of open models take the rest beside it."""


OTHERS = {"include_stop": "include_stop_str_in_output"}
"""What they have other names for."""


@contextmanager
def remote_answers(
    url: str, model: str | None, sampling: Mapping[str, Any]
) -> Iterator[Callable[[list[Any]], Iterator[str]]]:
    """What answers conversations at a server.

    Args:
        url: Where its API begins, as in `http://localhost:8000/v1`.
        model: One of its models; None for its first.
        sampling: How to continue prompts, where the user says.

    Raises:
        ValueError: The client isn't installed, or the URL is none.
        RuntimeError: The server can't be reached, refuses, or has no model.
    """
    is_url = url.startswith(("http://", "https://"))
    expect(is_url, "--server", "a URL, as http://localhost:8000/v1", url)
    try:
        from openai import OpenAI, OpenAIError  # noqa: PLC0415
    except ImportError as error:
        wanted = "the package openai ('pip install blockstride[chat]')"
        raise ValueError(f"--server: expected {wanted}, got none") from error
    key = os.environ.get("OPENAI_API_KEY") or "none"
    known = {name: value for name, value in sampling.items() if name in OPENAI}
    more = {OTHERS.get(n, n): value for n, value in sampling.items() if n not in OPENAI}

    def answer(messages: list[Any]) -> Iterator[str]:
        try:
            chunks = client.chat.completions.create(
                model=name, messages=messages, stream=True, extra_body=more, **known
            )
            with chunks:
                for chunk in chunks:
                    if chunk.choices and (piece := chunk.choices[0].delta.content):
                        yield piece
        except OpenAIError as error:
            raise RuntimeError(f"{url}: {error}") from error

    with OpenAI(base_url=url, api_key=key, timeout=TIMEOUT_SECONDS, max_retries=0) as client:
        try:
            name = model or next(iter(client.models.list())).id
        except StopIteration:
            raise RuntimeError(f"{url}: expected a model, got none") from None
        except OpenAIError as error:
            raise RuntimeError(f"{url}: {error}") from error
        yield answer
