"""What can go wrong with a transfer, as types; every message names the peer and the request."""

from __future__ import annotations


class TransferError(RuntimeError):
    """A request, or the connection to a peer, has failed.

    Attributes:
        peer: Whom it was about, as `engine rank N`; "" when there are several or none.
        request_id: Which request; "" when it is about the peer as such.
    """

    kind = "failed"

    def __init__(self, reason: str, *, peer: str = "", request_id: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.peer = peer
        self.request_id = request_id

    def of_request(self, request_id: str) -> TransferError:
        """The same failure, of one request."""
        return type(self)(self.reason, peer=self.peer, request_id=request_id)

    def __str__(self) -> str:
        about = f"request {self.request_id!r}" if self.request_id else ""
        whom = f"{self.peer}" if self.peer else ""
        where = ", ".join(part for part in (about, whom) if part)
        return f"{where}: {self.reason}" if where else self.reason


class ProtocolError(TransferError):
    """Bytes that no connector of this version and key would send."""

    kind = "protocol"


class PeerRefusedError(TransferError):
    """The peer answered that it can't or won't: another model, an unknown request, a replay."""

    kind = "refused"


class PeerLostError(TransferError):
    """The peer doesn't answer any more, can't be reached, or broke the connection."""

    kind = "lost"


class LeaseExpiredError(TransferError):
    """The producer doesn't hold the blocks any more: what was read may be somebody else's."""

    kind = "expired"


class DeadlineError(TransferError):
    """The request was not done in the time it was given."""

    kind = "deadline"


class AbortedError(TransferError):
    """The caller gave the request up."""

    kind = "aborted"


KINDS = tuple(
    error.kind
    for error in (
        TransferError,
        ProtocolError,
        PeerRefusedError,
        PeerLostError,
        LeaseExpiredError,
        DeadlineError,
        AbortedError,
    )
)
"""Names of the kinds of failure, as counters use them."""
