"""A read as its caller sees it: what it asks for, and what it holds while that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_seconds, expect_type, names, whole
from blockstride.transfer.errors import TransferError
from blockstride.transfer.request import BlockIds

BlockLists = list[Int32[np.ndarray, " blocks"]]


@dataclass(frozen=True)
class ReadRequest:
    """One sequence to take over.

    Attributes:
        request_id: The name under which the producer offers it.
        num_tokens: Its tokens.
        local: Blocks to fill, one entry for each group.
        sources: Engines that offer it, the first choice first.
        deadline_seconds: Time for all of it, retries included.

    Raises:
        ValueError: A value out of range.
        TypeError: A value of another type.
    """

    request_id: str
    num_tokens: int
    local: Sequence[BlockIds]
    sources: tuple[str, ...]
    deadline_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_request_id(self.request_id)
        object.__setattr__(self, "num_tokens", whole(self.num_tokens, "num_tokens"))
        object.__setattr__(self, "sources", names(self.sources, "sources"))
        expect(len(self.sources) > 0, "sources", "at least one engine", self.sources)
        expect_seconds(self.deadline_seconds, "deadline_seconds")


def check_request_id(request_id: object) -> None:
    """Raises `ValueError` or `TypeError` for what can't name a request."""
    expect_type(request_id, "request_id", str)
    assert isinstance(request_id, str), "checked above"
    expect(0 < len(request_id) <= 256, "request_id", "1 to 256 letters", repr(request_id))


@dataclass(eq=False)
class ReadHandle:
    """A request under way, for any thread.

    `done` comes first: the outcome is known. `settled` comes with it or later: nothing writes to
    the request's blocks any more. Blocks of a failed request must not be given to anybody else
    before that.

    Attributes:
        request: What was asked for.
        error: Why it failed; None while it runs and when it succeeded.
        invalid_blocks: Blocks of each group that don't hold what they should; none after success.
        source: The engine that it came from; "" before success.
        settled: Whether nothing writes to its blocks any more.
    """

    request: ReadRequest
    error: TransferError | None = None
    invalid_blocks: BlockLists = field(default_factory=list)
    source: str = ""
    settled: bool = False
    _done: threading.Event = field(default_factory=threading.Event, repr=False)
    _abort: Callable[[], None] = field(default=lambda: None, repr=False)
    _on_change: Callable[[], object] = field(default=lambda: None, repr=False)

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the outcome.

        Args:
            seconds: How long; None for the deadline of the request, which it never exceeds by much.

        Raises:
            TransferError: The request failed.
            TimeoutError: It is not done yet.
        """
        if seconds is not None:
            expect_seconds(seconds, "seconds", or_none_at_all=True)
        longest = self.request.deadline_seconds + 5.0 if seconds is None else seconds
        if not self._done.wait(longest):
            raise TimeoutError(f"request {self.request.request_id!r}: not done in {longest} s")
        if self.error is not None:
            raise self.error

    def _end(self) -> None:
        """The outcome is known."""
        self._done.set()
        self._on_change()

    def _settle(self) -> None:
        """Nothing writes any more."""
        self.settled = True
        self._on_change()

    def abort(self) -> None:
        """Aborts the request, if it is not done; its blocks are free once it has settled."""
        self._abort()
