"""What `TextGenerator` gives to those who wait: pieces of a text, and completions in order."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from blockstride.models.generation import Batch, Completion
from blockstride.models.progress_bar import ProgressBar


class Stream(Iterator[str]):
    """The text of one request, piece by piece.

    The request ends with its stream, however that ends: read to the end, closed, interrupted,
    or dropped.

    Args:
        batch: The request.
        pieces: What it says; None at the end.
    """

    def __init__(self, batch: Batch, pieces: SimpleQueue[str | None]) -> None:
        self._batch, self._pieces = batch, pieces
        (self._generation,) = batch.generations

    @property
    def completion(self) -> Completion:
        """What has become of the prompt so far; final when the stream has ended."""
        return self._generation.completion

    def __next__(self) -> str:
        try:
            piece = self._pieces.get()
        except BaseException:  # an interrupt
            self._batch.abort()
            raise
        if piece is None:
            # for others that read the same stream, or this one if it asks again
            self._pieces.put(None)
            self._generation.raise_errors()
            raise StopIteration
        return piece

    def close(self) -> None:
        """Ends the request, if it hasn't ended; its blocks are free then."""
        self._batch.close()


class Completions(Iterator[Completion]):
    """The completions of several prompts, each when it and those before it are done.

    The requests end with it, as with a `Stream`.

    Args:
        batch: The requests.
        bar: Shown while they are waited for.
    """

    def __init__(self, batch: Batch, bar: ProgressBar | None) -> None:
        self._batch, self._bar = batch, bar
        self._left = iter(batch.generations)

    def __next__(self) -> Completion:
        generation = next(self._left)
        try:
            if self._bar is None:
                generation.done.wait()
            else:
                self._bar.wait(generation)
        except BaseException:  # an interrupt
            self._batch.abort()
            raise
        return generation.result()

    def close(self) -> None:
        """Ends the requests that are left; their blocks are free then."""
        self._batch.close()
