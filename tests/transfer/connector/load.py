"""Random load with random faults; afterwards every block is accounted for, and every byte right.

python -m tests.transfer.connector.load [--seconds 600] [--seed 0]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

import numpy as np

from blockstride.transfer.connector import ConnectorSettings
from tests.transfer.connector import tenants
from tests.transfer.connector.processes import Crew, Process

NAMES = ("producer", "replica")
SETTINGS = ConnectorSettings(lease_seconds=1.0, answer_seconds=0.5, backoff_seconds=0.2)
WAYS = (("all", False), ("tcp", False), ("tcp", True))
"""UCX transports, and whether producers write."""


class Load:
    """Two producers that hold the same requests, one reader, and what happens to them.

    Args:
        crew: Where processes come from.
        seed: Decides what happens, but not when.
        transports: UCX transports.
        push: Whether producers write.
    """

    def __init__(self, crew: Crew, seed: int, transports: str = "all", push: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.crew, self.transports = crew, transports
        self.producers: dict[str, Process] = {}
        self.stopped: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.number = 0
        (self.reader,) = crew.hire(1, transports)
        self.reader.call(tenants.open_reader, replace(SETTINGS, push=push))
        for name in NAMES:
            self.open(name)

    def open(self, name: str) -> None:
        (process,) = self.crew.hire(1, self.transports)
        address = process.call(tenants.open_producer, name, SETTINGS)
        self.producers[name] = process
        self.reader.call(tenants.add_peer, name, address)

    def step(self) -> None:
        """Something happens; requests most of the time."""
        what = self.rng.choice(
            ["request", "abort", "withdraw", "stop", "resume", "kill", "collect"],
            p=[0.5, 0.1, 0.05, 0.03, 0.1, 0.02, 0.2],
        )
        name = NAMES[self.rng.integers(len(NAMES))]
        if what == "request":
            self.request()
        elif what == "abort":
            self.reader.call(tenants.abort, self.recent())
        elif what == "withdraw" and name not in self.stopped:
            self.producers[name].call(tenants.withdraw, self.recent())
        elif what == "stop" and not self.stopped:
            self.producers[name].stop()
            self.stopped.add(name)
        elif what == "resume":
            self.resume()
        elif what == "kill":
            self.producers[name].kill()
            self.stopped.discard(name)
            self.open(name)
        elif what == "collect":
            self.happened.update(self.reader.call(tenants.collect))
        self.happened[f"({what})"] += 1

    def recent(self) -> int:
        return max(0, self.number - int(self.rng.integers(3)))

    def request(self) -> None:
        """Offers a request where that is possible, and reads it from there, or from elsewhere."""
        self.number += 1
        count = int(self.rng.integers(1, 40))
        for name in NAMES:
            if name not in self.stopped and self.rng.integers(4):
                self.producers[name].call(tenants.offer, self.number, count)
        sources = tuple(self.rng.permutation(NAMES)[: self.rng.integers(1, 3)].tolist())
        seconds = float(self.rng.choice([0.3, 2.0, 5.0]))
        self.reader.call(tenants.begin, self.number, count, sources, seconds)

    def resume(self) -> None:
        for name in self.stopped:
            self.producers[name].resume()
        self.stopped.clear()

    def finish(self) -> Counter[str]:
        """Ends all faults, and then looks at every block.

        Raises:
            AssertionError: A request that doesn't end, a block that is lost, a byte that is wrong.
        """
        self.resume()
        self.happened.update(self.reader.call(tenants.finish, 30.0))
        for producer in self.producers.values():
            left = producer.call(tenants.leases_left, 10.0)
            assert left["leases"] == 0, left
            assert left["postings"] == 0, left
        assert self.reader.call(tenants.use)["reads"] == 0
        return self.happened


def run(
    seconds: float, seed: int, transports: str = "all", push: bool = False, right: int = 0
) -> Counter[str]:
    """Load for some time, longer where a slow machine needs it, and the reckoning.

    Args:
        seconds: How long at least.
        seed: Decides what happens, but not when.
        transports: UCX transports.
        push: Whether producers write.
        right: It goes on until as many requests were read right, for two minutes at most.
    """
    crew = Crew()
    try:
        load, start = Load(crew, seed, transports, push), monotonic()
        while monotonic() < start + (seconds if load.happened["right"] >= right else 120.0):
            load.step()
        return load.finish()
    finally:
        crew.kill()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    for transports, push in WAYS:
        happened = run(args.seconds / len(WAYS), args.seed, transports, push)
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(happened.items()))
        way = f"{transports}, {'written' if push else 'read'}"
        sys.stdout.write(f"{way}: every block accounted for; {found}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
