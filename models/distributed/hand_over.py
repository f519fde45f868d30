"""Hand-overs of one engine: sequences that it holds for others, and those that it takes over.

Rank 0 keeps the books; every rank does its part of each. Blocks change hands only when all ranks
have said so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from blockstride.models.distributed.rank_messages import (
    Arrived,
    GiveUp,
    LeaseOver,
    Load,
    Offer,
    Offered,
    Settled,
    Withdraw,
)
from blockstride.models.distributed.rank_transfers import Event
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine import Engine, Request

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Holding:
    """A sequence that is held for another engine.

    Attributes:
        request: It.
        unoffered: Ranks that don't hold it yet.
        leased: Ranks that have not let go of it.
    """

    request: Request
    unoffered: int
    leased: int


@dataclass(eq=False)
class _Loading:
    """A sequence that is being read.

    Attributes:
        name: Under which it is held.
        request: It.
        source: The engine that holds it.
        unread: Ranks that still read.
        unsettled: Ranks where something may still write to its blocks.
        owner: Whose blocks these are: the request's, or nobody's after a failure.
        error: Why it is not to be used; "" as long as all is well.
    """

    name: str
    request: Request
    source: str
    unread: int
    unsettled: int
    owner: int
    error: str = ""


class HandOvers:
    """Both directions of the hand-overs of an engine.

    Args:
        engine: The engine.
        ranks: All its ranks.
        on_held: Called with the name of a sequence that others may read now.
    """

    def __init__(self, engine: Engine, ranks: Ranks, on_held: Callable[[str], None]) -> None:
        self._engine, self._ranks, self._on_held = engine, ranks, on_held
        self._holding: dict[str, _Holding] = {}
        self._loading: dict[str, _Loading] = {}
        self._last_owner = 0
        self.failed_loads = 0

    def hold(self, name: str, request: Request) -> None:
        """Takes a request that has just been computed out of the engine, and offers its blocks."""
        self._engine.scheduler.detach(request)
        count = len(self._ranks)
        self._holding[name] = _Holding(request, count, count)
        blocks = self._engine.blocks.held(request.request_id)
        self._ranks.tell(Offer(name, request.num_cached, blocks))

    def load(self, name: str, request: Request, source: str) -> None:
        """Takes over a request whose last token alone is not in the cache of `source`."""
        self._engine.scheduler.add(request, lambda _: self._begin(name, request, source))

    def _begin(self, name: str, request: Request, source: str) -> None:
        """It has blocks now."""
        count = len(self._ranks)
        self._loading[name] = _Loading(
            name, request, source, count, count, owner=request.request_id
        )
        blocks = self._engine.blocks.held(request.request_id)
        self._ranks.tell(Load(name, request.num_tokens - 1, blocks, source))

    def drop(self, name: str) -> bool:
        """Forgets a sequence as soon as nothing uses its blocks.

        Returns:
            Whether it was here, and not with the engine: that has what is read or computed again.
        """
        if name in self._holding:
            self._ranks.tell(Withdraw(name))
            return True
        loading = self._loading.get(name)
        if loading is None or loading.unread == 0 or loading.error:
            return False
        self._set_apart(loading, "not wanted any more")
        self._engine.scheduler.detach(loading.request)
        return True

    def on(self, event: Event) -> None:
        """Takes in what a rank says."""
        match event:
            case Offered():
                holding = self._holding[event.name]
                holding.unoffered -= 1
                if holding.unoffered == 0:
                    self._on_held(event.name)
            case LeaseOver():
                holding = self._holding[event.name]
                holding.leased -= 1
                if holding.leased == 0:
                    del self._holding[event.name]
                    self._engine.release(holding.request.request_id)
            case Arrived():
                loading = self._loading[event.name]
                loading.unread -= 1
                if event.error and not loading.error:
                    self._set_apart(loading, event.error)
                    self.failed_loads += 1
                    logger.warning("%s: computed again: %s", loading.source, event.error)
                    self._engine.scheduler.compute(loading.request)
                if loading.unread == 0 and not loading.error:
                    self._engine.scheduler.attach(loading.request)
            case Settled():
                self._settle(event.name)

    def _set_apart(self, loading: _Loading, error: str) -> None:
        """Takes blocks from their request, for nobody else until nothing writes to them."""
        loading.error = error
        self._last_owner -= 1
        self._engine.blocks.rename(loading.owner, self._last_owner)
        loading.owner = self._last_owner
        self._ranks.tell(GiveUp(loading.name))

    def _settle(self, name: str) -> None:
        loading = self._loading[name]
        loading.unsettled -= 1
        if loading.unsettled == 0:
            del self._loading[name]
            if loading.error:
                self._engine.release(loading.owner)
