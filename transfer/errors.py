"""What can go wrong with a transfer, as types; every message names the peer and the request."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["failed", "protocol", "refused", "lost", "expired", "deadline", "aborted"]
"""Names of the kinds of failure, as counters and messages use them."""


class TransferError(RuntimeError):
    """A request, or the connection to a peer, has failed.

    Attributes:
        peer: Whom it was about, as `engine rank N`; "" when there are several or none.
        request_id: Which request; "" when it is about the peer as such.
        is_answer: Whether the peer itself has said so: it does nothing more for the request.
    """

    kind: Kind = "failed"
    is_answer = False

    def __init__(self, reason: str, *, peer: str = "", request_id: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.peer = peer
        self.request_id = request_id

    def of_request(self, request_id: str) -> TransferError:
        """The same failure, of one request."""
        same = type(self)(self.reason, peer=self.peer, request_id=request_id)
        same.is_answer = self.is_answer
        return same

    def __str__(self) -> str:
        about = f"request {self.request_id!r}" if self.request_id else ""
        whom = f"{self.peer}" if self.peer else ""
        where = ", ".join(part for part in (about, whom) if part)
        return f"{where}: {self.reason}" if where else self.reason


class PeerFailedError(TransferError):
    """The peer wanted to, and something went wrong there: planning, packing, or its NIXL."""


class ProtocolError(TransferError):
    """Bytes that no connector of this version and key would send."""

    kind: Kind = "protocol"


class PeerRefusedError(TransferError):
    """The peer answered that it can't or won't: another model, an unknown request, a replay."""

    kind: Kind = "refused"


class PeerLostError(TransferError):
    """The peer doesn't answer any more, can't be reached, or broke the connection."""

    kind: Kind = "lost"


class LeaseExpiredError(TransferError):
    """The producer doesn't hold the blocks any more: what was read may be somebody else's."""

    kind: Kind = "expired"


class DeadlineError(TransferError):
    """The request was not done in the time it was given."""

    kind: Kind = "deadline"


class AbortedError(TransferError):
    """The caller gave the request up."""

    kind: Kind = "aborted"


KINDS: tuple[Kind, ...] = get_args(Kind)

_OF_PEER: dict[Kind, type[TransferError]] = {
    "failed": PeerFailedError,
    "protocol": ProtocolError,
    "refused": PeerRefusedError,
    "lost": PeerLostError,
    "expired": LeaseExpiredError,
    "deadline": DeadlineError,
    "aborted": AbortedError,
}


def answered(kind: Kind, reason: str, peer: str) -> TransferError:
    """The error that a peer says it had, as what it was there."""
    error = _OF_PEER[kind](reason, peer=peer)
    error.is_answer = True
    return error


def as_failure(error: Exception) -> TransferError:
    """Whatever went wrong in the midst of a transfer, as one of ours that keeps its type's name."""
    if isinstance(error, TransferError):
        return error
    return TransferError(f"{type(error).__name__}: {error}")
