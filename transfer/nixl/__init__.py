"""The only package that speaks NIXL: agents, registered memory, and copies between them."""

from blockstride.transfer.nixl.agent import Memory, Registration, TransferAgent
from blockstride.transfer.nixl.chunks import Chunk
from blockstride.transfer.nixl.posting import Operation, Peer, Posting, PreparedCopy

__all__ = [
    "Chunk",
    "Memory",
    "Operation",
    "Peer",
    "Posting",
    "PreparedCopy",
    "Registration",
    "TransferAgent",
]
