"""What one rank does of hand-overs: it holds its part of blocks, and reads its part of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from blockstride.layouts import KVCachePool
from blockstride.models.block_copies import copy_blocks
from blockstride.models.distributed.life import Event
from blockstride.models.distributed.messages import (
    GroupBlocks,
    Hold,
    Outcome,
    Peer,
    Read,
    Settled,
    Setup,
    Stop,
)
from blockstride.models.hybrid_model import HybridModel
from blockstride.transfer import BlockIds, EngineTransferInfo, connector

Command = Peer | Hold | Read | Stop

READ_SECONDS = 30.0
"""Time for reading a sequence; afterwards it is computed again."""

logger = logging.getLogger(__name__)


class RankTransfers:
    """The connector of a rank, driven by messages.

    Args:
        setup: The rank.
        settings: Settings of the connector.
        model: Its part of the model.
        pools: Its pools.
        on_change: Called, on any thread, when there are events.
    """

    def __init__(
        self,
        setup: Setup,
        settings: connector.ConnectorSettings,
        model: HybridModel,
        pools: Sequence[KVCachePool],
        on_change: Callable[[], object],
    ) -> None:
        info = EngineTransferInfo.of(
            pools,
            model.cache_specs(),
            setup.engine_id,
            tp_size=setup.config.tp_size,
            model_fingerprint=setup.model_fingerprint,
        )
        if setup.host:
            settings = replace(settings, host=setup.host)
        self.connector = connector.Connector(info, setup.rank, settings, on_change)
        self.address = self.connector.register_kv_caches(
            {i: pool.storage for i, pool in enumerate(pools)}
        )
        self._on_change = on_change
        self._groups = [(pool, placed) for pool in pools for placed in pool.layout.groups]
        # nobody who waits hears less of this than of an engine that is silent
        self._read_seconds = min(READ_SECONDS, setup.timeout_seconds)
        self._reads: dict[int, connector.ReadHandle] = {}
        self._arrived: set[int] = set()
        self._events: list[Outcome | Settled] = []

    def do(self, command: Command) -> None:
        """Carries a command out, or begins to; what goes wrong is an event of that request."""
        try:
            self._do(command)
        except Exception as error:
            logger.exception("%s", command)
            match command:
                case Read(request_id):
                    lost = Outcome(request_id, Event.LOST, repr(error))
                    self._events += [lost, Settled(request_id)]
                case Hold(request_id):
                    ends = Event.OFFERED, Event.RETURNED
                    self._events += [Outcome(request_id, event) for event in ends]
                case _:
                    raise
            self._on_change()

    def _do(self, command: Command) -> None:
        match command:
            case Peer(engine_id, addresses):
                self.connector.add_peer(engine_id, addresses)
                if addresses:
                    self.connector.connect(engine_id)
            case Hold(request_id, num_tokens, blocks):
                self.connector.offer(str(request_id), num_tokens, _block_ids(blocks))
                self._events.append(Outcome(request_id, Event.OFFERED))
                self._on_change()
            case Read(request_id, num_tokens, blocks, source, present, copies):
                if copies:
                    copy_blocks(self._groups, torch.tensor(copies, dtype=torch.int32))
                lacking = _block_ids(blocks, present)
                request = connector.ReadRequest(
                    str(request_id), num_tokens, lacking, (source,), self._read_seconds
                )
                self._reads[request_id] = self.connector.start_read(request)
            case Stop(request_id):
                if request_id in self._reads:
                    self._reads[request_id].abort()
                else:
                    self.connector.withdraw(str(request_id))

    def events(self) -> list[Outcome | Settled]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        for end in self.connector.ended_leases():
            events.append(Outcome(int(end.request_id), Event.RETURNED))
        for request_id, handle in list(self._reads.items()):
            if handle.done and request_id not in self._arrived:
                self._arrived.add(request_id)
                event = Event.LOST if handle.error else Event.ARRIVED
                events.append(Outcome(request_id, event, str(handle.error or "")))
            if handle.settled:
                del self._reads[request_id]
                self._arrived.remove(request_id)
                events.append(Settled(request_id))
        return events

    def close(self) -> None:
        """Ends all of it; nothing touches the pools afterwards."""
        self.connector.close()


def _block_ids(blocks: GroupBlocks, present: Sequence[int] = ()) -> list[BlockIds]:
    counts = present or [0] * len(blocks)
    return [BlockIds(ids, at, count) for (at, ids), count in zip(blocks, counts, strict=True)]
