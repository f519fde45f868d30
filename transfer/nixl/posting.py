"""Postings: bytes that are on their way between two agents, and the lists that they're named by.

NIXL has no cancel, and measured over TCP the bytes of a READ still land after its handle was
released and even after its peer was removed. So a posting is polled until NIXL says that it has
stopped, its handle is kept until then, and so is its peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from blockstride.transfer.copy_plan import Indices, Side
from blockstride.transfer.errors import PeerLostError, TransferError
from blockstride.transfer.nixl.chunks import Chunk, RowList, cut

Operation = Literal["READ", "WRITE"]
Rows = Int64[np.ndarray, "rows 5"]


class Nixl:
    """NIXL's own agent, and its errors as ours.

    Attributes:
        agent: The agent.
        errors: All types of NIXL's errors.
    """

    def __init__(self, agent: Any, errors: tuple[type[Exception], ...]) -> None:
        self.agent, self.errors = agent, errors

    @contextmanager
    def about(self, peer: str) -> Iterator[None]:
        """Turns NIXL's errors into ours, which say whom they are about."""
        try:
            yield
        except self.errors as error:
            raise failure(error, peer) from error


def failure(error: Exception, peer: str) -> TransferError:
    """Our error for one of NIXL's."""
    name = type(error).__name__
    kind = PeerLostError if name == "nixlRemoteDisconnectError" else TransferError
    return kind(f"NIXL about {peer}: {name} {error}")


@dataclass(eq=False)
class Peer:
    """What an agent keeps of another one.

    Attributes:
        name: Its name.
        users: How many sessions need it.
        lists: Descriptor lists that name it.
        unfinished: Postings that have not stopped.
    """

    name: str
    users: int = 0
    lists: list[PreparedCopy] = field(default_factory=list)
    unfinished: set[Posting] = field(default_factory=set)

    def poll(self) -> bool:
        """Whether any of its postings has not stopped."""
        for posting in list(self.unfinished):
            posting.poll()
        return bool(self.unfinished)

    def release(self) -> None:
        """Gives its lists back; no posting may be unfinished."""
        for prepared in self.lists:
            prepared.release()
        self.lists = []


class Posting:
    """Bytes on their way.

    Attributes:
        stopped: Whether NIXL touches the memory no more.
        error: Why it failed, None while it runs or when it succeeded.
        merged: Descriptors that NIXL made of it, None before it succeeded.
        when_stopped: Called once when it stops.
    """

    def __init__(self, nixl: Nixl, handle: Any, peer: Peer) -> None:
        self.stopped = False
        self.error: TransferError | None = None
        self.merged: int | None = None
        self.when_stopped: Callable[[], None] | None = None
        self._nixl, self._handle, self._peer = nixl, handle, peer
        peer.unfinished.add(self)
        self._look(nixl.agent.transfer)

    def poll(self) -> bool:
        """Whether it has stopped."""
        if not self.stopped:
            self._look(self._nixl.agent.check_xfer_state)
        return self.stopped

    def _look(self, state: Callable[[Any], str]) -> None:
        try:
            found = state(self._handle)
        except self._nixl.errors as error:
            self._stop(failure(error, self._peer.name))
            return
        if found == "DONE":
            telemetry = self._nixl.agent.get_xfer_telemetry(self._handle)
            self.merged = int(telemetry.descCount)
            self._stop(None)
        elif found != "PROC":
            self._stop(TransferError(f"NIXL about {self._peer.name}: state {found}"))

    def _stop(self, error: TransferError | None) -> None:
        self.stopped, self.error = True, error
        self._peer.unfinished.discard(self)
        with suppress(*self._nixl.errors):
            self._handle.release()
        if self.when_stopped is not None:
            self.when_stopped()


class PreparedCopy:
    """Pairs of byte ranges here and at a peer, as descriptor lists that NIXL keeps.

    Args:
        nixl: The agent here.
        peer: The peer.
        side: Which end of the plan is here.
        rows: The strided rows of both ends.
        kinds: The kinds of memory here and at the peer.
        backends: NIXL plugins to choose from; none: those of the agent.

    Raises:
        TransferError: Rows outside the memory that either agent has registered.
    """

    def __init__(
        self,
        nixl: Nixl,
        peer: Peer,
        side: Side,
        rows: Mapping[Side, Rows],
        kinds: tuple[str, str] = ("DRAM", "DRAM"),
        backends: tuple[str, ...] = (),
    ) -> None:
        self._nixl, self._peer, self._side, self._backends = nixl, peer, side, list(backends)
        self._local, self._remote = RowList(rows["local"]), RowList(rows["remote"])
        other: Side = "remote" if side == "local" else "local"
        with nixl.about(peer.name):
            prepare = nixl.agent.prep_xfer_dlist
            self._mine = prepare("NIXL_INIT_AGENT", rows[side].astype(np.uint64), kinds[0])
            self._theirs = prepare(peer.name, rows[other].astype(np.uint64), kinds[1])
        peer.lists.append(self)

    def chunks(self, indices: Indices, chunk_bytes: int) -> Iterator[Chunk]:
        """The calls that a request takes."""
        return cut(self._local, self._remote, indices, chunk_bytes)

    def post(self, operation: Operation, chunk: Chunk) -> Posting:
        """Starts to move a chunk.

        Raises:
            PeerLostError: The peer is gone.
            TransferError: NIXL refuses.
        """
        mine, theirs = chunk.indices
        if self._side == "remote":
            mine, theirs = theirs, mine
        with self._nixl.about(self._peer.name):
            make = self._nixl.agent.make_prepped_xfer
            lists = (self._mine, mine, self._theirs, theirs)
            handle = make(operation, *lists, b"", self._backends)
        return Posting(self._nixl, handle, self._peer)

    def release(self) -> None:
        """Gives the lists back; no posting may be unfinished."""
        for handle in (self._mine, self._theirs):
            with suppress(*self._nixl.errors):
                handle.release()
