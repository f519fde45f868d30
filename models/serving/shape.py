"""How answers look to a client: what completions and chats have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec import json

from blockstride.models.generation import Generation
from blockstride.models.serving.fields import SamplingFields
from blockstride.models.serving.reading import Piece

DONE = b"data: [DONE]\n\n"


class Shape(ABC):
    """Makes JSON of answers, whole or piece by piece.

    Args:
        body: What the client asked for.
        model: What it calls the model.
        request_id: The name of its request.

    Attributes:
        counts_on: Whether each event of a stream tells what has been used so far.
    """

    prefix: str
    """What ids of answers begin with."""

    whole: str
    chunk: str
    """What OpenAI calls a whole answer, and a piece of one."""

    def __init__(self, body: SamplingFields, model: str, request_id: str) -> None:
        self.body, self._model = body, model
        self._id, self._created = f"{self.prefix}-{request_id}", int(time.time())
        options = body.stream_options
        self._tells_usage = bool(options and options.include_usage)
        self.counts_on = bool(options and options.continuous_usage_stats)

    @abstractmethod
    def choice(self, generation: Generation, piece: Piece) -> dict[str, Any]:
        """A whole answer, of which `piece` is all."""

    @abstractmethod
    def deltas(self, generation: Generation, piece: Piece) -> list[dict[str, Any]]:
        """A piece of an answer, as the choices of one chunk or several."""

    def whole_body(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> bytes:
        """All answers."""
        return json.encode({**self._head(self.whole), "choices": choices, "usage": usage})

    def event(self, choice: dict[str, Any], usage: dict[str, int]) -> bytes:
        """A piece of an answer, as an event of a stream."""
        chunk = {**self._head(self.chunk), "choices": [choice]}
        if self._tells_usage:
            chunk["usage"] = usage if self.counts_on else None
        return b"data: %b\n\n" % json.encode(chunk)

    def last_events(self, usage: dict[str, int]) -> bytes:
        """What a stream ends with."""
        if not self._tells_usage:
            return DONE
        chunk = {**self._head(self.chunk), "choices": [], "usage": usage}
        return b"data: %b\n\n%b" % (json.encode(chunk), DONE)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def tokens_of(self, generation: Generation, piece: Piece) -> dict[str, Any]:
        """The fields with a piece's tokens, where they are asked for."""
        if not self.body.return_token_ids:
            return {}
        tokens: dict[str, Any] = {"token_ids": piece.token_ids}
        if piece.is_first:
            tokens["prompt_token_ids"] = generation.prompt_ids
        return tokens


def usage_of(generations: Sequence[Generation], num_new: int, num_answers: int) -> dict[str, int]:
    """What a request has cost so far.

    Args:
        generations: Its answers, prompt after prompt.
        num_new: Tokens of all answers.
        num_answers: To each prompt, whose tokens count once.
    """
    num_prompt = sum(len(each.prompt_ids) for each in generations[::num_answers])
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
    }
