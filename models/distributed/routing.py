"""Routing: which of several engines a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REQUEST_TOKENS = 64
"""What a request costs those beside it, in tokens, apart from its own: the steps of its answer."""


class Candidate(NamedTuple):
    """An engine that could take a request.

    Attributes:
        queued_tokens: Tokens that it has still to compute for others.
        num_requests: How many those are.
        room: Tokens of one more sequence that it has free blocks for.
    """

    queued_tokens: int
    num_requests: int
    room: int


def choose_engine(num_tokens: int, candidates: Sequence[Candidate]) -> int:
    """The engine that will be done with a request first, as far as can be told.

    One without room keeps it waiting until other requests end, which takes longer than any prompt,
    so those with room come before. Of equals, the one with most room has it grow.

    Args:
        num_tokens: Tokens of the request.
        candidates: The engines, at least one.

    Returns:
        Index of the engine; of equals the first.
    """

    def cost(index: int) -> tuple[bool, int, int]:
        queued_tokens, num_requests, room = candidates[index]
        return room < num_tokens, queued_tokens + REQUEST_TOKENS * num_requests, -room

    return min(range(len(candidates)), key=cost)
