"""A job: what a request that is being read has done so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blockstride.transfer.connector.handle import ReadHandle
from blockstride.transfer.connector.pairing import Pairing


@dataclass(eq=False)
class Job:
    """What a request is doing.

    Attributes:
        handle: What its caller holds.
        touching: Futures of everything that may still write to its blocks or staging memory.
        confirmed: Remote ranks that have said that their lease held.
        pairing: The plan of the source that it is read from; None before that is known.
        epochs: Remote rank -> epoch of the lease that it granted.
        written: Remote rank -> a future that is done once that rank writes nothing more.
    """

    handle: ReadHandle
    touching: set[asyncio.Future[None]] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    pairing: Pairing | None = None
    epochs: dict[int, int] = field(default_factory=dict)
    written: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    def forget_source(self) -> None:
        """Begins anew with another source."""
        self.confirmed.clear()
        self.pairing, self.epochs, self.written = None, {}, {}
