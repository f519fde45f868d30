"""Links: sessions with the ranks that a reader knows, made when needed and made again when lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import zmq.asyncio

from blockstride.transfer.connector.link import Link
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.pairing import Pairing, pair, plan_options
from blockstride.transfer.connector.staging import StagingArea
from blockstride.transfer.errors import PeerLostError, PeerRefusedError, TransferError
from blockstride.transfer.nixl import Memory, PreparedCopy
from blockstride.transfer.peer_plan import PeerPlan

FIRST_PAUSE_SECONDS = 0.02

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Route:
    """One strategy of one link, ready to run.

    Attributes:
        plan: The steps.
        prepared: Lists of the step on the wire; None where the producer writes.
        staging: Where pages arrive that are to be converted.
        turn: Held by the request that uses staging memory, here or at the producer.
    """

    plan: PeerPlan
    prepared: PreparedCopy
    staging: StagingArea | None
    turn: asyncio.Lock


@dataclass(eq=False)
class Connection:
    """A link, and what this rank reads through it.

    Attributes:
        link: The session.
        pairing: The plan of which this is one remote rank's part.
        routes: That part.
    """

    link: Link
    pairing: Pairing
    routes: list[Route]

    async def close(self, *, politely: bool = False) -> None:
        """Ends the session; memory goes back once nothing is written to it any more."""
        await self.link.close(politely=politely)
        for route in self.routes:
            if route.staging is not None:
                async with route.turn:
                    route.staging.release()


class Links:
    """All links of a rank, and the plans for the engines behind them.

    Args:
        local: The rank.
        context: Makes sockets.
    """

    def __init__(self, local: LocalRank, context: zmq.asyncio.Context) -> None:
        self._local, self._context = local, context
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self._pairings: dict[str, Pairing] = {}
        self._casts: dict[str, StagingArea] = {}
        self.cast_turns: dict[str, asyncio.Lock] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def num_granted(self) -> int:
        """Leases that are being read."""
        return sum(len(found.link.leases) for found in self._connections.values())

    def add_peer(self, engine_id: str, addresses: Sequence[str]) -> None:
        """Makes known where the ranks of an engine listen; links to other addresses are closed."""
        known = self._addresses.get(engine_id, ())
        self._addresses[engine_id] = now = tuple(addresses)
        for key in [key for key in self._connections if key[0] == engine_id]:
            here = slice(key[1], key[1] + 1)
            if known[here] != now[here]:
                self._drop(key)

    def ranks(self, engine_id: str) -> range:
        """The ranks of an engine that addresses are known of.

        Raises:
            PeerRefusedError: An engine that is not known.
        """
        if engine_id not in self._addresses:
            raise PeerRefusedError("no addresses are known of it", peer=engine_id)
        return range(len(self._addresses[engine_id]))

    async def connection(
        self, engine_id: str, rank: int, patience: float | None = None
    ) -> Connection:
        """The link to a rank, made if there is none.

        Args:
            engine_id: Its engine.
            rank: Its number.
            patience: Seconds for which attempts go on; None: until the caller gives up.

        Raises:
            PeerRefusedError: The peer doesn't want this reader, or this reader not the peer: trying
                again is no use.
            PeerLostError: It was not reached within `patience`.
        """
        peer = f"{engine_id} rank {rank}"
        if rank not in self.ranks(engine_id):
            raise PeerRefusedError("no address is known of it", peer=peer)
        try:
            async with asyncio.timeout(patience):
                return await self._connection(engine_id, rank)
        except TimeoutError:
            raise PeerLostError(f"not reached within {patience} s", peer=peer) from None

    async def _connection(self, engine_id: str, rank: int) -> Connection:
        key, pause = (engine_id, rank), FIRST_PAUSE_SECONDS
        async with self._opening.setdefault(key, asyncio.Lock()):
            while True:
                found = self._connections.get(key)
                if found is not None and not found.link.failed.done():
                    return found
                if found is not None:
                    self._drop(key)
                if rank not in self.ranks(engine_id):
                    # it is gone since
                    raise PeerRefusedError("no address is known of it")
                try:
                    self._connections[key] = await self._open(engine_id, rank)
                except PeerLostError as error:
                    self._local.counters.failed_handshakes += 1
                    logger.debug("%s; next attempt in %.2f s", error, pause)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, self._local.settings.backoff_seconds)

    async def _open(self, engine_id: str, rank: int) -> Connection:
        link = Link(self._local, engine_id, rank, self._addresses[engine_id][rank])
        try:
            await link.open(self._context)
            pairing = self._pairing(link)
            routes = self._routes(link, pairing, rank)
        except BaseException as error:
            if isinstance(error, TransferError):
                error.peer = link.peer
            await link.close()
            raise
        logger.debug("linked to %s", link.peer)
        watch = asyncio.create_task(self._watch((engine_id, rank), link))
        self._ends.add(watch)
        watch.add_done_callback(self._ends.discard)
        return Connection(link, pairing, routes)

    async def _watch(self, key: tuple[str, int], link: Link) -> None:
        """Gives back what belongs to a peer as soon as it is lost, not when it is needed again."""
        await asyncio.wait({link.failed})
        found = self._connections.get(key)
        if found is not None and found.link is link:
            self._drop(key)

    def _pairing(self, link: Link) -> Pairing:
        info, known = link.info, self._pairings.get(link.info.engine_id)
        if known is not None and known.plan.remote == info:
            return known
        others = [
            found
            for (engine_id, _), found in self._connections.items()
            if engine_id == info.engine_id and not found.link.failed.done()
        ]
        if others:
            raise PeerRefusedError("it describes another engine than its ranks do", peer=link.peer)
        try:
            if info.world_size > len(self._addresses[info.engine_id]):
                raise ValueError(f"expected addresses of {info.world_size} ranks")
            turn = self.cast_turns.setdefault(info.engine_id, asyncio.Lock())
            if turn.locked():
                raise PeerLostError("a request of its former life has not stopped", peer=link.peer)
            local = self._local
            made = pair(local.info, local.rank, info, plan_options(local.settings))
            self._forget_cast(info.engine_id)
            if made.casts:
                self._casts[info.engine_id] = local.area(made.plan.local, local.rank)
        except (ValueError, TypeError) as error:
            raise PeerRefusedError(str(error), peer=link.peer) from error
        self._pairings[info.engine_id] = made
        return made

    def _forget_cast(self, engine_id: str) -> None:
        area = self._casts.pop(engine_id, None)
        if area is not None:
            area.release()

    def target(self, pairing: Pairing) -> tuple[Memory, StagingArea | None]:
        """Where a plan's local side is: the pools, or the staging area before a cast."""
        area = self._casts.get(pairing.plan.remote.engine_id)
        return (self._local.memory, None) if area is None else (area.memory, area)

    def _routes(self, link: Link, pairing: Pairing, rank: int) -> list[Route]:
        assert link.agent is not None, "a link that was opened has an agent"
        local, routes = self._local, []
        mine, _ = self.target(pairing)
        peers = pairing.peers(rank)
        if len(link.areas) != len(peers):
            raise PeerRefusedError(f"expected {len(peers)} staging areas", peer=link.peer)
        try:
            for peer, area in zip(peers, link.areas, strict=True):
                here, there, staging = mine, link.memory, None
                if peer.convert is not None and peer.staging is not None:
                    staging = local.area(peer.staging, rank)
                    here = staging.memory
                if peer.pack is not None and peer.staging is not None:
                    there = area
                    wanted = dict(peer.staging.rank_cache(local.rank).pool_bytes)
                    if area.sizes != wanted:
                        raise PeerRefusedError("its staging area has another size", peer=link.peer)
                prepared = local.agent.prepare(peer.wire, "local", here, link.agent, there)
                routes.append(Route(peer, prepared, staging, asyncio.Lock()))
        except (ValueError, TransferError) as error:
            for route in routes:
                if route.staging is not None:
                    route.staging.release()
            raise PeerRefusedError(str(error), peer=link.peer) from error
        return routes

    def _drop(self, key: tuple[str, int]) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None:
            task = asyncio.create_task(connection.close())
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def close(self) -> None:
        """Says goodbye to all."""
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(found.link.close(politely=True) for found in connections))
        for task in list(self._ends):
            task.cancel()
