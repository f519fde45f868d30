"""What is said within a process, through no pipe: of those at the other end, or to who waits."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from blockstride.models.distributed.messages import Ready


class Ended(Struct, frozen=True):
    """Said for a process that has ended, or closed its end of the pipe."""


class Draining(Struct, frozen=True):
    """Said for an engine on a machine that is about to be taken away."""


class Joins(Struct, frozen=True):
    """Said for an engine that has been started, and is to work with the others.

    Attributes:
        role: What it is there for.
        engine: Its processes.
        ready: What it has said.
    """

    role: Any
    engine: Any
    ready: Ready


class Wake(Struct, frozen=True):
    """Said to a thread that waits, by another one that has something for it to look at."""
