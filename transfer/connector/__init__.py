"""How plans are carried out between processes: sessions, leases, reads and writes.

Names are looked up when they are asked for: settings and counters belong to programs that transfer
nothing, too.
"""

from typing import TYPE_CHECKING

from blockstride.lazy import lazy
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

if TYPE_CHECKING:
    from blockstride.transfer.connector.connector import Connector
    from blockstride.transfer.connector.counters import Counters
    from blockstride.transfer.connector.handle import ReadHandle, ReadRequest
    from blockstride.transfer.connector.leases import LeaseEnd
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
    "ProtocolError",
    "ReadHandle",
    "ReadRequest",
    "TransferError",
]

__getattr__ = lazy(
    __name__,
    {
        "connector": ("Connector",),
        "counters": ("Counters",),
        "handle": ("ReadHandle", "ReadRequest"),
        "leases": ("LeaseEnd",),
        "settings": ("ConnectorSettings",),
    },
)
