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

    Attributes:
        stopped: Whether a stop text was met.
    """

    def __init__(self, detokenizer: Detokenizer | None, stops: Sequence[str]) -> None:
        self.stopped = False
        self._detokenizer, self._stops = detokenizer, stops
        self._pieces: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """What was decided so far."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Takes the next token in and returns the text that it decides."""
        if self._detokenizer is None or self.stopped:
            return ""
        self._held += self._detokenizer.push(token_id)
        if any(self._detokenizer.may_end_with(stop) for stop in self._stops):
            size = self._first_stop(self._held + self._detokenizer.rest())
            if size is not None:
                return self.finish()
        size = self._first_stop(self._held)
        if size is None:
            return self._release(len(self._held) - self._undecided())
        return self._stop(size)

    def finish(self) -> str:
        """The rest of the text, as no token follows."""
        if self._detokenizer is None or self.stopped:
            return ""
        self._held += self._detokenizer.rest()
        self._detokenizer = None
        size = self._first_stop(self._held)
        return self._release(len(self._held)) if size is None else self._stop(size)

    def _first_stop(self, text: str) -> int | None:
        """Where the first stop text begins."""
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)

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

    def _stop(self, size: int) -> str:
        self.stopped = True
        return self._release(size)

    def _release(self, size: int) -> str:
        piece, self._held = self._held[:size], self._held[size:]
        if piece:
            self._pieces.append(piece)
        return piece
