"""How plans are carried out: agents, handshakes, leases, reads and writes over NIXL."""

from blockstride.transfer.connector.agent import TransferAgent
from blockstride.transfer.connector.connector import Connector
from blockstride.transfer.connector.counters import Counters
from blockstride.transfer.connector.errors import (
    AbortedError,
    DeadlineError,
    LeaseExpiredError,
    PeerFailedError,
    PeerLostError,
    PeerRefusedError,
    ProtocolError,
    TransferError,
)
from blockstride.transfer.connector.handle import ReadHandle, ReadRequest
from blockstride.transfer.connector.leases import LeaseEnd
from blockstride.transfer.connector.posting import PreparedCopy
from blockstride.transfer.connector.settings import ConnectorSettings

__all__ = [
    "AbortedError",
    "Connector",
    "ConnectorSettings",
    "Counters",
    "DeadlineError",
    "LeaseEnd",
    "LeaseExpiredError",
    "PeerFailedError",
    "PeerLostError",
    "PeerRefusedError",
    "PreparedCopy",
    "ProtocolError",
    "ReadHandle",
    "ReadRequest",
    "TransferAgent",
    "TransferError",
]
