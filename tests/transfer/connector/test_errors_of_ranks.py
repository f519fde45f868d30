"""An error of any rank reaches the reader as what it is, and no rank holds blocks for longer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from blockstride.transfer import StrategyChoice
from tests.transfer.connector import faults, roles
from tests.transfer.connector.bulk import staged
from tests.transfer.connector.processes import Crew, Process
from tests.transfer.connector.scenes import QUICK

CHUNK_BYTES = 1 << 16
"""Of which the blocks of a request are several."""


@dataclass
class Stages:
    """Two producing ranks in processes of their own, and a reader that needs both."""

    producers: list[Process]
    reader: Process

    def offer(self, name: str) -> None:
        for rank, producer in enumerate(self.producers):
            producer.call(roles.offer, name, f"p{rank}")

    def ends(self) -> list[list[tuple[str, str]]]:
        """How the leases of both ranks end, which would last for longer than a test waits."""
        return [
            producer.call(roles.until_ended, f"p{rank}", 5.0)
            for rank, producer in enumerate(self.producers)
        ]

    def expect_none_in_use(self) -> None:
        for rank, producer in enumerate(self.producers):
            for what in ("postings", "leases"):
                producer.call(roles.until, f"p{rank}", what, 0)
        for what in ("postings", "granted", "reads"):
            self.reader.call(roles.until, "d", what, 0)


def stages(crew: Crew, strategy: StrategyChoice, push: bool = False) -> Stages:
    *producers, reader = crew.hire(3)
    settings = replace(
        QUICK,
        strategy=strategy,
        push=push,
        max_tokens=128,
        chunk_bytes=CHUNK_BYTES,
        lease_seconds=60.0,
    )
    for rank, producer in enumerate(producers):
        producer.send(roles.produce, staged, [rank], settings, "")
    addresses = [producer.result()[rank] for rank, producer in enumerate(producers)]
    reader.call(roles.prepare_reader, staged, 0, settings, addresses)
    return Stages(producers, reader)


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a producer, and what its reader is to hear."""

    strategy: StrategyChoice
    push: bool
    cause: Callable[[], None]
    rank: int
    kind: str
    message: str


FAULTS = {
    "planning to write": Fault("direct", True, faults.planning, 0, "failed", "no plan today"),
    "planning to pack": Fault("pack", False, faults.planning, 1, "failed", "no plan today"),
    "packing": Fault("pack", False, faults.packing, 0, "failed", "ValueError: no copy today"),
    "packing to write": Fault("pack", True, faults.packing, 1, "failed", "ValueError: no copy"),
    "a first chunk": Fault("direct", True, partial(faults.chunk, 0), 1, "failed", "state ERR"),
    "a later chunk": Fault("direct", True, partial(faults.chunk, 2), 0, "failed", "state ERR"),
    "a broken connection": Fault("direct", True, faults.posting, 0, "lost", "Disconnect"),
    "no connection": Fault("direct", True, faults.connecting, 1, "failed", "nixlBackendError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_producers_error_is_told_as_it_is_and_ends_the_leases_of_all_ranks(name: str, crew: Crew):
    fault = FAULTS[name]
    here = stages(crew, fault.strategy, fault.push)
    here.offer("r")
    here.producers[fault.rank].call(fault.cause)
    here.reader.call(roles.start)
    found = here.reader.call(roles.outcome)
    assert found["kind"] == fault.kind
    assert f"request 'r', producer rank {fault.rank}: " in found["error"]
    assert fault.message in found["error"]
    assert here.reader.call(roles.settled, 5.0)
    ends = here.ends()
    assert ends[fault.rank] == [("r", "abandoned")]
    assert ends[1 - fault.rank] in ([("r", "abandoned")], [("r", "read")])
    here.expect_none_in_use()
    counters = [p.call(roles.counters, f"p{rank}") for rank, p in enumerate(here.producers)]
    assert counters[fault.rank].failed_claims == 1
    assert counters[1 - fault.rank].failed_claims == 0
    assert here.reader.call(roles.counters).failures == {
        **dict.fromkeys(counters[0].failures, 0),
        fault.kind: 1,
    }
    # and nothing is broken by it
    here.producers[fault.rank].call(faults.undo)
    here.offer("next")
    here.reader.call(roles.start, "next")
    assert here.reader.call(roles.outcome, "next")["error"] == ""
    here.reader.call(roles.compare)
    assert here.ends() == [[("next", "read")]] * 2


@pytest.mark.parametrize(
    ("strategy", "cause", "message"),
    [
        ("pages", faults.converting, "ValueError: no copy today"),
        ("direct", faults.planning, "RuntimeError: no plan today"),
        ("direct", partial(faults.chunk, 2), "state ERR"),
    ],
    ids=["converting", "planning", "a later chunk"],
)
def test_a_readers_own_error_ends_the_leases_of_all_ranks(
    strategy: StrategyChoice, cause: Callable[[], None], message: str, crew: Crew
):
    here = stages(crew, strategy)
    here.offer("r")
    here.reader.call(roles.link_ahead)
    here.reader.call(cause)
    here.reader.call(roles.start)
    found = here.reader.call(roles.outcome)
    assert found["kind"] == "failed"
    assert message in found["error"]
    outcomes = ([("r", "abandoned")], [("r", "read")])
    assert all(end in outcomes for end in here.ends())
    here.expect_none_in_use()
