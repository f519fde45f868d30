"""The beginning of most tests: a producer and a reader in processes of their own, introduced."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blockstride.transfer.connector import ConnectorSettings
from tests.transfer.connector import roles
from tests.transfer.connector.bulk import bulk
from tests.transfer.connector.processes import Crew, Process
from tests.transfer.support import HandOver

QUICK = ConnectorSettings(lease_seconds=3.0, answer_seconds=1.5, max_tokens=1 << 16)
"""Short times, so that tests of what times out are short."""

IN_FLIGHT = 3072
"""Blocks (96 MiB) that take 50 ms and more over TCP."""


@dataclass
class Scene:
    """Who takes part.

    Attributes:
        producer: Holds rank 0 of the producer, which offers request `r`.
        reader: Holds rank 0 of the reader.
        address: Where the producer listens.
        make: Makes what is handed over.
    """

    producer: Process
    reader: Process
    address: str
    make: Callable[[], HandOver]

    @property
    def blocks(self) -> list[list[int]]:
        """All local blocks of the request, by group."""
        return [blocks.ids.tolist() for blocks in self.make().request().local]

    def read(self, name: str = "r", seconds: float = 20.0) -> dict:
        """Reads a request and says how that ended."""
        self.reader.call(roles.start, name, seconds)
        return self.reader.call(roles.outcome, name)


def scene(
    crew: Crew,
    num_blocks: int = 8,
    *,
    transports: str = "all",
    producer: ConnectorSettings = QUICK,
    reader: ConnectorSettings = QUICK,
    make: Callable[..., HandOver] = bulk,
) -> Scene:
    """A producer that offers a sequence, and a reader that knows its address."""
    case = partial(make, num_blocks)
    here, there = crew.hire(2, transports)
    here.send(roles.produce, case, [0], producer, "")
    address = here.result()[0]
    there.call(roles.prepare_reader, case, 0, reader, [address])
    # not before all are ready, as leases are short
    here.call(roles.offer, "r")
    return Scene(here, there, address, case)
