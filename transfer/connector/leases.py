"""Leases: which blocks a producer holds for whom, under which epoch, and until when.

A lease is held exactly while it is in the table and its time has not run out, so a confirmation
and the return of the blocks can't both happen: a reader that comes too late is told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from blockstride.checks import expect
from blockstride.transfer.errors import LeaseExpiredError, PeerRefusedError
from blockstride.transfer.request import BlockIds

Outcome = Literal["read", "abandoned", "expired", "withdrawn"]

ReaderRank = tuple[str, int]
"""A reading engine, and one of its ranks."""


@dataclass
class Lease:
    """Blocks of one request that must stay as they are.

    Attributes:
        request_id: Which request.
        epoch: Number of this lease among all that the rank ever gave.
        num_tokens: Tokens of the sequence.
        tables: Blocks of every group.
        ends: When it runs out, on the caller's clock.
        num_readers: Ranks that read it; None until the first of them says which engine reads.
        engine_id: The reading engine; "" until then.
        finished: Ranks that have stopped reading.
        abandoned: Whether one of them had not read all.
        writing: Ranks that are being written to, and what stops that: the blocks are in use however
            late it is.
        is_withdrawn: Whether it ends as soon as nobody is written to.
    """

    request_id: str
    epoch: int
    num_tokens: int
    tables: Sequence[BlockIds]
    ends: float
    num_readers: int | None = None
    engine_id: str = ""
    finished: set[ReaderRank] = field(default_factory=set)
    abandoned: bool = False
    writing: dict[ReaderRank, asyncio.Event] = field(default_factory=dict)
    is_withdrawn: bool = False


@dataclass(frozen=True)
class LeaseEnd:
    """A lease that is over: its blocks belong to the engine again.

    Attributes:
        request_id: Which request.
        outcome: `read` by all its readers, `abandoned` by one of them, `expired`, or `withdrawn` by
            the engine.
    """

    request_id: str
    outcome: Outcome


class LeaseTable:
    """All leases of one rank.

    Args:
        lease_seconds: How long a lease lasts from its last sign of life.
        on_end: Called when one has ended.
    """

    def __init__(self, lease_seconds: float, on_end: Callable[[], object] = lambda: None) -> None:
        self.lease_seconds = lease_seconds
        self._on_end = on_end
        self._leases: dict[str, Lease] = {}
        self._last_epoch = 0
        self._ended: list[LeaseEnd] = []

    def __len__(self) -> int:
        return len(self._leases)

    def offer(
        self, request_id: str, num_tokens: int, tables: Sequence[BlockIds], now: float
    ) -> Lease:
        """Holds blocks for readers to come.

        Raises:
            ValueError: A request that is held already.
        """
        expect(
            request_id not in self._leases,
            "request_id",
            "one that isn't offered already",
            repr(request_id),
        )
        self._last_epoch += 1
        lease = Lease(request_id, self._last_epoch, num_tokens, tables, now + self.lease_seconds)
        self._leases[request_id] = lease
        return lease

    def begin(self, now: float) -> None:
        """Readers can come from now on: what was offered before has all its time yet."""
        for lease in self._leases.values():
            lease.ends = now + self.lease_seconds

    def claim(self, request_id: str, reader: ReaderRank, num_readers: int, now: float) -> Lease:
        """A reader begins.

        Args:
            request_id: Which request.
            reader: Who.
            num_readers: Ranks of its engine that read from this rank.
            now: The time.

        Raises:
            PeerRefusedError: An unknown request, one of another engine, or one that it finished.
            LeaseExpiredError: Its time ran out.
        """
        lease = self._held(request_id, now)
        if lease.engine_id not in {"", reader[0]}:
            raise PeerRefusedError(f"request {request_id!r} is read by {lease.engine_id!r}")
        if reader in lease.finished:
            raise PeerRefusedError(f"request {request_id!r} was read by this rank before")
        lease.engine_id, lease.num_readers = reader[0], num_readers
        lease.ends = now + self.lease_seconds
        return lease

    def renew(self, request_id: str, epoch: int, now: float) -> bool:
        """A reader still reads; returns whether the lease is held."""
        lease = self._leases.get(request_id)
        if lease is None or lease.epoch != epoch or self._is_over(lease, now):
            return False
        lease.ends = now + self.lease_seconds
        return True

    def finish(self, request_id: str, epoch: int, reader: ReaderRank, now: float) -> None:
        """A reader has stopped; the last one's blocks go back.

        Raises:
            LeaseExpiredError: The lease was not held any more, or another one had begun.
            PeerRefusedError: It is not read by this engine.
        """
        lease = self._leases.get(request_id)
        if lease is None or lease.epoch != epoch:
            raise LeaseExpiredError(f"lease {epoch} of request {request_id!r} has ended")
        self._held(request_id, now)
        if lease.engine_id != reader[0]:
            raise PeerRefusedError(f"request {request_id!r} is read by {lease.engine_id!r}")
        self._leave(lease, reader)

    def abandon(
        self, request_id: str, epoch: int | None, reader: ReaderRank, num_readers: int
    ) -> None:
        """A reader has stopped without having read all; it may never have begun.

        Args:
            request_id: Which request.
            epoch: The lease's; None: any.
            reader: Who.
            num_readers: Ranks of its engine that read from this rank.
        """
        lease = self._leases.get(request_id)
        ours = lease is not None and lease.engine_id in {"", reader[0]}
        if lease is not None and ours and epoch in {None, lease.epoch}:
            # another of its ranks may have failed before this one was asked for anything
            lease.engine_id, lease.num_readers = reader[0], num_readers
            lease.abandoned = True
            self._leave(lease, reader)

    def _leave(self, lease: Lease, reader: ReaderRank) -> None:
        lease.finished.add(reader)
        if lease.num_readers is not None and len(lease.finished) >= lease.num_readers:
            self._end(lease, "abandoned" if lease.abandoned else "read")

    def stop_writing(self, reader: ReaderRank, request_id: str) -> bool:
        """Lets no further chunk be written to a reader; returns whether one still is."""
        lease = self._leases.get(request_id)
        stop = None if lease is None else lease.writing.get(reader)
        if stop is not None:
            stop.set()
        return stop is not None

    def written(self, lease: Lease, reader: ReaderRank) -> None:
        """A reader is written to no more."""
        del lease.writing[reader]
        is_held = self._leases.get(lease.request_id) is lease
        if is_held and lease.is_withdrawn and not lease.writing:
            self._end(lease, "withdrawn")

    def stop_all(self) -> None:
        """Lets no further chunk be written to anybody."""
        for lease in self._leases.values():
            for stop in lease.writing.values():
                stop.set()

    def withdraw(self, request_id: str) -> bool:
        """Ends a lease for the engine's own reasons; returns whether it has ended now.

        One that readers are written to from ends when that has stopped.
        """
        lease = self._leases.get(request_id)
        if lease is None:
            return False
        if lease.writing:
            lease.is_withdrawn = True
            for stop in lease.writing.values():
                stop.set()
            return False
        self._end(lease, "withdrawn")
        return True

    def expire(self, now: float) -> None:
        """Ends the leases whose time ran out."""
        for lease in list(self._leases.values()):
            if self._is_over(lease, now):
                self._end(lease, "expired")

    def ended(self) -> list[LeaseEnd]:
        """Leases that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _held(self, request_id: str, now: float) -> Lease:
        lease = self._leases.get(request_id)
        if lease is None:
            raise PeerRefusedError(f"request {request_id!r} is not held here")
        if self._is_over(lease, now):
            raise LeaseExpiredError(f"lease {lease.epoch} of request {request_id!r} ran out")
        return lease

    def _is_over(self, lease: Lease, now: float) -> bool:
        return now > lease.ends and not lease.writing

    def _end(self, lease: Lease, outcome: Outcome) -> None:
        del self._leases[lease.request_id]
        self._ended.append(LeaseEnd(lease.request_id, outcome))
        self._on_end()
