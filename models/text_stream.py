"""Tokens of a request to text, piece by piece, up to a stop text."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from blockstride.models.engine.request import Request


class TextStream:
    """The text of one request as it grows.

    Text is held back while it may be the beginning of a stop text, and bytes while they are no
    whole character yet.

    Attributes:
        request: The request.
        text: What was decided so far; final once the request is finished.
        stopped: Whether a stop text was met.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._held = ""

    def push(self, token_id: int | None) -> str:
        """Takes the next token in, if there is one, and returns the text that this decides."""
        if token_id is not None:
            self._held += self._decoder.step(self._tokenizer, token_id) or ""
        stops = self.request.params.stop
        met = [at for stop in stops if (at := self._held.find(stop)) >= 0]
        if met:
            self.stopped = True
            return self._release(min(met))
        if self.request.finish_reason is not None:
            return self._release(len(self._held))
        return self._release(len(self._held) - self._undecided())

    def _undecided(self) -> int:
        """Characters at the end that a stop text may begin with."""
        return max(
            (
                size
                for stop in self.request.params.stop
                for size in range(1, len(stop))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )

    def _release(self, size: int) -> str:
        piece, self._held = self._held[:size], self._held[size:]
        self.text += piece
        return piece
