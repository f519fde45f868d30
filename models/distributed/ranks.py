"""All ranks of an engine, as rank 0 sees them: itself, and processes that follow it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from blockstride.models.batch import StepBatch
from blockstride.models.distributed.messages import Close
from blockstride.models.distributed.rank_messages import Forward, Join, Poison
from blockstride.models.distributed.rank_transfers import Command, Event, RankTransfers


class Ranks:
    """Has other ranks do what rank 0 does.

    Attributes:
        followers: Pipes to ranks 1, 2, ...
        transfers: Hand-overs of rank 0; None when there are none.
    """

    transfers: RankTransfers | None = None

    def __init__(self, followers: Sequence[Connection]) -> None:
        self.followers = tuple(followers)

    def __len__(self) -> int:
        return len(self.followers) + 1

    def join(self) -> None:
        """Has followers meet rank 0."""
        self._send(Join())

    def forward(self, batch: StepBatch) -> None:
        """Has followers compute a batch."""
        if self.followers:
            self._send(Forward.of(batch))

    def poison(self, blocks: Sequence[Sequence[int]]) -> None:
        """Has followers poison freed blocks."""
        self._send(Poison(blocks))

    def tell(self, command: Command) -> None:
        """Has all ranks do their part of a hand-over."""
        self._send(command)
        if self.transfers is not None:
            self.transfers.do(command)

    def own_events(self) -> list[Event]:
        """What rank 0's part of hand-overs has brought."""
        return [] if self.transfers is None else self.transfers.events()

    def close(self) -> None:
        """Ends all but this process."""
        self._send(Close())
        if self.transfers is not None:
            self.transfers.close()

    def _send(self, message: Any) -> None:
        if self.followers:
            pickled = pickle.dumps(message)
            for follower in self.followers:
                follower.send_bytes(pickled)
