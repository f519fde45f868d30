"""What one rank does of hand-overs: it holds its part of blocks, and reads its part of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from blockstride.layouts import KVCacheLayout, KVCachePool
from blockstride.models.distributed.messages import Gone, Peers, Setup
from blockstride.models.distributed.rank_messages import (
    Arrived,
    GiveUp,
    GroupBlocks,
    LeaseOver,
    Load,
    Offer,
    Offered,
    Settled,
    Withdraw,
)
from blockstride.models.hybrid_model import HybridModel
from blockstride.transfer import BlockIds, EngineTransferInfo
from blockstride.transfer.connector import Connector, ConnectorSettings, ReadHandle, ReadRequest

Command = Peers | Gone | Offer | Withdraw | Load | GiveUp
Event = Offered | LeaseOver | Arrived | Settled

LOAD_SECONDS = 30.0
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
        settings: ConnectorSettings,
        model: HybridModel,
        pools: Sequence[KVCachePool],
        on_change: Callable[[], object],
    ) -> None:
        info = _transfer_info(setup, model, pools)
        self.connector = Connector(info, setup.rank, settings, on_change)
        self.address = self.connector.register_kv_caches(
            {i: pool.storage for i, pool in enumerate(pools)}
        )
        self._on_change = on_change
        # nobody who waits hears less of this than of an engine that is silent
        self._load_seconds = min(LOAD_SECONDS, setup.answer_seconds)
        self._loads: dict[str, ReadHandle] = {}
        self._arrived: set[str] = set()
        self._events: list[Event] = []

    def do(self, command: Command) -> None:
        """Carries a command out, or begins to; what goes wrong is an event of that sequence."""
        try:
            self._do(command)
        except Exception as error:
            logger.exception("%s", command)
            match command:
                case Load():
                    self._events += [Arrived(command.name, repr(error)), Settled(command.name)]
                case Offer():
                    self._events += [Offered(command.name), LeaseOver(command.name)]
                case _:
                    raise
            self._on_change()

    def _do(self, command: Command) -> None:
        match command:
            case Peers():
                self.connector.add_peer(command.engine_id, command.addresses)
                self.connector.connect(command.engine_id)
            case Gone():
                self.connector.add_peer(command.engine_id, ())
            case Offer():
                blocks = _block_ids(command.blocks)
                self.connector.offer(command.name, command.num_tokens, blocks)
                self._events.append(Offered(command.name))
                self._on_change()
            case Withdraw():
                self.connector.withdraw(command.name)
            case Load():
                request = ReadRequest(
                    command.held_as,
                    command.num_tokens,
                    _block_ids(command.blocks),
                    (command.source,),
                    self._load_seconds,
                )
                self._loads[command.name] = self.connector.start_read(request)
            case GiveUp():
                if command.name in self._loads:
                    self._loads[command.name].abort()

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        events += [LeaseOver(end.request_id) for end in self.connector.ended_leases()]
        for name, handle in list(self._loads.items()):
            if handle.done and name not in self._arrived:
                self._arrived.add(name)
                events.append(Arrived(name, str(handle.error or "")))
            if handle.settled:
                del self._loads[name]
                self._arrived.remove(name)
                events.append(Settled(name))
        return events

    def close(self) -> None:
        """Ends all of it; nothing touches the pools afterwards."""
        self.connector.close()


def _block_ids(blocks: GroupBlocks) -> list[BlockIds]:
    return [BlockIds(ids, first) for first, ids in blocks]


def _transfer_info(
    setup: Setup, model: HybridModel, pools: Sequence[KVCachePool]
) -> EngineTransferInfo:
    config, groups = setup.config, [group for pool in pools for group in pool.layout.groups]
    return EngineTransferInfo(
        setup.engine_id,
        model.cache_specs(),
        KVCacheLayout.parse(config.layout),
        "unified" if config.policy == "unified" else "split",
        groups[0].block_size,
        tuple(pool.layout.num_blocks for pool in pools),
        kernel_block_size=config.kernel_block_size,
        tp_size=config.tp_size,
        model_fingerprint=setup.model_fingerprint,
    )
