"""What is new of an answer since a client was last told something."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from blockstride.models.engine import TokenLogprobs
from blockstride.models.generation import Generation
from blockstride.models.serving.errors import ApiError


class Piece(NamedTuple):
    """The next part of an answer.

    Attributes:
        answer: Which answer, from 0.
        text: Its text.
        token_ids: The tokens that have come with it; text may be held back, or come later.
        logprobs: Of those tokens; None where nobody asks.
        finish_reason: Why the answer ends here; None: it doesn't.
        is_first: Whether it is the first part.
    """

    answer: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None
    finish_reason: str | None
    is_first: bool


def joined(pieces: Sequence[Piece]) -> Piece:
    """All parts of one answer as one."""
    first, last = pieces[0], pieces[-1]
    logprobs = None
    if first.logprobs is not None:
        logprobs = list(chain.from_iterable(piece.logprobs or () for piece in pieces))
    return Piece(
        first.answer,
        "".join(piece.text for piece in pieces),
        list(chain.from_iterable(piece.token_ids for piece in pieces)),
        logprobs,
        last.finish_reason,
        is_first=True,
    )


class Reading:
    """Reads an answer while the engine's loop extends it.

    Args:
        generation: The answer.
        index: Its number among those of the request.

    Attributes:
        is_over: Whether all of it has been read.
        last_read: When its last part was, by `time.monotonic`.
    """

    def __init__(self, generation: Generation, index: int) -> None:
        self.generation, self._index = generation, index
        self._num_tokens = self._num_pieces = 0
        self.is_over = False
        self.last_read = time.monotonic()

    @property
    def num_tokens(self) -> int:
        """Tokens that have been read."""
        return self._num_tokens

    def next(self) -> Piece | None:
        """The next part, if there is one.

        Raises:
            ApiError: The engine didn't complete the answer.
        """
        if self.is_over:
            return None
        # looked at first: what it has when it is over is all
        self.is_over = self.generation.done.is_set()
        token_ids, pieces = self.generation.news(self._num_tokens, self._num_pieces)
        if not token_ids and not self.is_over:
            return None
        reason = self._end() if self.is_over else None
        first = self._num_tokens
        self._num_tokens += len(token_ids)
        self._num_pieces += len(pieces)
        logprobs = None
        if self.generation.params.logprobs is not None and self.generation.request is not None:
            logprobs = self.generation.request.logprobs[first : self._num_tokens]
        is_first = first == 0
        return Piece(self._index, "".join(pieces), token_ids, logprobs, reason, is_first)

    def _end(self) -> str:
        if self.generation.error is not None:
            raise ApiError(503, f"the engine failed: {self.generation.error}", code="engine_failed")
        completion = self.generation.completion
        if completion.finish_reason == "error":
            raise ApiError(500, f"the answer failed: {completion.error}", code="answer_failed")
        return completion.finish_reason
