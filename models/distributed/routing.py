"""Routing: which of several engines a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

REQUEST_TOKENS = 64
"""What a request costs those beside it, in tokens, apart from its own: the steps of its answer."""

READ_SHARE = 1 / 8
"""What it costs to read the cache of a token from another engine, in tokens computed."""


class Candidate(NamedTuple):
    """An engine that could take a request.

    Attributes:
        queued_tokens: Tokens that it has still to compute for others.
        num_requests: How many those are.
        room: Tokens of one more sequence that it has free blocks for.
        known_tokens: Tokens of the request that it needn't compute, or read.
    """

    queued_tokens: int
    num_requests: int
    room: int
    known_tokens: int = 0


def choose_engine(num_tokens: int, candidates: Sequence[Candidate], token_cost: float = 1.0) -> int:
    """The engine that will be done with a request first, as far as can be told.

    It is where most of the request is known, unless what that engine has to do before takes longer
    than to compute, or read, those tokens elsewhere. One without room keeps it waiting until other
    requests end, which takes longer than any prompt, so those with room come before. Of equals, the
    one with most room has it grow.

    Args:
        num_tokens: Tokens of the request.
        candidates: The engines, at least one.
        token_cost: What a token costs that isn't known: 1 where it is computed, `READ_SHARE` where
            it is read.

    Returns:
        Index of the engine; of equals the first.
    """

    def cost(index: int) -> tuple[bool, float, int]:
        queued_tokens, num_requests, room, known_tokens = candidates[index]
        waits = queued_tokens + REQUEST_TOKENS * num_requests
        unknown = token_cost * max(0, num_tokens - known_tokens)
        return room < num_tokens, waits + unknown, -room

    return min(range(len(candidates)), key=cost)
