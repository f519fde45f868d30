"""The text of a request, piece by piece, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.models.detokenizer import Detokenizer


class TextStream:
    """The text of one request as it grows.

    Text is held back while it may be the beginning of a stop text, and while the next token may
    change it. A stop text counts as soon as it is in the text that there would be if no token
    followed.

    Args:
        detokenizer: Makes text of tokens; None: there is none.
        stops: Texts that end it.
        min_tokens: Tokens that it has at least: a stop text that is whole before the last of them
            doesn't count.
        include_stop: Whether the stop text is part of it.

    Attributes:
        stopped: Whether a stop text was met.
        pieces: What was decided so far.
    """

    def __init__(
        self,
        detokenizer: Detokenizer | None,
        stops: Sequence[str],
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self.stopped = False
        self._detokenizer, self._stops = detokenizer, stops
        self._num_left, self._include_stop = min_tokens, include_stop
        self.pieces: list[str] = []
        self._held = ""
        # characters of what is held in which no stop text may end
        self._too_early = 0

    @property
    def text(self) -> str:
        """What was decided so far."""
        return "".join(self.pieces)

    def push(self, token_id: int) -> str:
        """Takes the next token in and returns the text that it decides."""
        if self._detokenizer is None or self.stopped:
            return ""
        self._held += self._detokenizer.push(token_id)
        self._num_left -= 1
        if self._num_left > 0 and self._stops:
            self._too_early = len(self._held) + len(self._detokenizer.rest())
            return self._release(len(self._held) - self._undecided())
        may_end = any(self._detokenizer.may_end_with(stop) for stop in self._stops)
        if may_end and self._first_stop(self._held + self._detokenizer.rest()) is not None:
            return self.finish()
        stop = self._first_stop(self._held)
        if stop is None:
            return self._release(len(self._held) - self._undecided())
        return self._stop(*stop)

    def finish(self) -> str:
        """The rest of the text, as no token follows."""
        if self._detokenizer is None or self.stopped:
            return ""
        self._held += self._detokenizer.rest()
        self._detokenizer = None
        stop = None if self._num_left > 0 else self._first_stop(self._held)
        return self._release(len(self._held)) if stop is None else self._stop(*stop)

    def _first_stop(self, text: str) -> tuple[int, int] | None:
        """Where the first stop text begins, and its length."""
        found = (
            (text.find(stop, max(0, self._too_early - len(stop) + 1)), len(stop))
            for stop in self._stops
        )
        return min((each for each in found if each[0] >= 0), default=None)

    def _undecided(self) -> int:
        """Characters at the end that a stop text may begin with."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )

    def _stop(self, begin: int, size: int) -> str:
        self.stopped = True
        return self._release(begin + size if self._include_stop else begin)

    def _release(self, size: int) -> str:
        piece, self._held = self._held[:size], self._held[size:]
        self._too_early = max(0, self._too_early - size)
        if piece:
            self.pieces.append(piece)
        return piece
