"""What goes wrong in a process when a test wants it to. Every function runs in a process."""

from functools import partial
from typing import Any

from blockstride.transfer.connector import PeerLostError, TransferError, reader_session, reading
from blockstride.transfer.nixl import PreparedCopy, TransferAgent
from blockstride.transfer.peer_plan import PeerPlan
from tests.transfer.connector.worker import STATE


def _replace(owner: Any, name: str, function: Any) -> None:
    STATE["undo"] = partial(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, function)


def undo() -> None:
    """Puts things right again."""
    STATE.pop("undo")()


def planning() -> None:
    def read(*_: Any) -> Any:
        raise RuntimeError("no plan today")

    _replace(PeerPlan, "read", read)


def packing() -> None:
    _replace(reader_session, "copy_here", _no_copy)


def converting() -> None:
    _replace(reading, "copy_here", _no_copy)


def _no_copy(*_: Any) -> None:
    raise ValueError("no copy today")


def chunk(number: int) -> None:
    """NIXL fails in the midst of one of the chunks."""
    post, posted = PreparedCopy.post, iter(range(1 << 20))

    def failing(*arguments: Any) -> Any:
        posting = post(*arguments)
        if next(posted) == number:
            while not posting.poll():
                pass
            posting.error = TransferError("NIXL about a peer: state ERR")
        return posting

    _replace(PreparedCopy, "post", failing)


def posting() -> None:
    """NIXL finds the connection broken."""

    def post(*_: Any) -> Any:
        raise PeerLostError("NIXL about a peer: nixlRemoteDisconnectError")

    _replace(PreparedCopy, "post", post)


def connecting() -> None:
    """NIXL doesn't take to the other agent."""

    def connect(*_: Any) -> Any:
        raise TransferError("NIXL about a peer: nixlBackendError")

    _replace(TransferAgent, "connect", connect)
