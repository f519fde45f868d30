"""How plans are carried out between processes: sessions, leases, reads and writes."""

from blockstride.transfer.connector.connector import Connector
from blockstride.transfer.connector.counters import Counters
from blockstride.transfer.connector.handle import ReadHandle, ReadRequest
from blockstride.transfer.connector.leases import LeaseEnd
from blockstride.transfer.connector.settings import ConnectorSettings
from blockstride.transfer.errors import (
    AbortedError,
    DeadlineError,
    LeaseExpiredError,
    PeerFailedError,
    PeerLostError,
    PeerRefusedError,
    ProtocolError,
    TransferError,
)

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
    "ProtocolError",
    "ReadHandle",
    "ReadRequest",
    "TransferError",
]
