"""Many hand-overs and many restarts, and what a process uses afterwards.

python -m tests.transfer.connector.endurance [--hand-overs 1000] [--restarts 50]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from blockstride.transfer.connector import ConnectorSettings
from tests.transfer.connector import roles
from tests.transfer.connector.bulk import bulk
from tests.transfer.connector.processes import Crew, Process

SETTINGS = ConnectorSettings(
    strategy="pages", max_tokens=128, lease_seconds=2.0, answer_seconds=1.0
)
"""With a staging area, so that there is something to lose at every restart."""

PATIENT = replace(SETTINGS, lease_seconds=30.0)
"""For producers: a first reader may need seconds, to be heard of and to begin."""

CASE = partial(bulk, 8)
MAX_GROWTH_BYTES = 4 << 20
"""What the allocators of Python and UCX may keep; a staging area that is lost has 256 KiB."""


def hand_overs(crew: Crew, warm_up: int, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """What a reader uses after some hand-overs, and after many more."""
    producer, reader = crew.hire(2)
    address = producer.call(roles.produce, CASE, [0], SETTINGS, "")[0]
    reader.call(roles.prepare_reader, CASE, 0, SETTINGS, [address])
    uses = []
    for first, stop in ((0, warm_up), (warm_up, warm_up + count)):
        for number in range(first, stop):
            producer.call(roles.offer, str(number))
            reader.call(roles.start, str(number))
            assert reader.call(roles.outcome, str(number))["kind"] == ""
            reader.call(roles.forget, str(number))
        uses.append(_use(reader, producer))
    return uses[0], uses[1]


def restarts(crew: Crew, warm_up: int, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """What a reader uses after some lives of its producer, and after many more."""
    (reader,) = crew.hire(1)
    reader.call(roles.prepare_reader, CASE, 0, SETTINGS, ["tcp://127.0.0.1:9"])
    uses = []
    for first, stop in ((0, warm_up), (warm_up, warm_up + count)):
        for number in range(first, stop):
            (producer,) = crew.hire(1)
            address = producer.call(roles.produce, CASE, [0], PATIENT, str(number))[0]
            reader.call(roles.add_peer, "producer", [address])
            reader.call(roles.start, str(number))
            found = reader.call(roles.outcome, str(number))
            assert found["kind"] == "", found["error"]
            reader.call(roles.forget, str(number))
            producer.kill()
        # a link to somebody who is dead is given up by and by
        reader.call(roles.until, "d", "peers", 0)
        uses.append(_use(reader))
    return uses[0], uses[1]


def _use(reader: Process, producer: Process | None = None) -> dict[str, int]:
    found = {**reader.call(roles.process_use), **reader.call(roles.resources)}
    if producer is not None:
        there = {**producer.call(roles.process_use), **producer.call(roles.resources, "p0")}
        found |= {f"producer's {name}": value for name, value in there.items()}
    return found


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What has grown; of memory, only by more than allocators keep."""
    return {
        name: after[name] - before[name]
        for name in before
        if after[name] - before[name] > ("memory" in name) * MAX_GROWTH_BYTES
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hand-overs", type=int, default=1000)
    parser.add_argument("--restarts", type=int, default=50)
    args = parser.parse_args(argv)
    crew = Crew()
    try:
        for what, run, count in (
            ("hand-overs", hand_overs, args.hand_overs),
            ("restarts", restarts, args.restarts),
        ):
            before, after = run(crew, max(3, count // 10), count)
            grown = growth(before, after)
            verdict = f"grown: {grown}" if grown else "nothing grew"
            sys.stdout.write(f"{count} {what}: {verdict}; in use: {after}\n")
            sys.stdout.flush()
            if grown:
                return 1
            crew.dismiss(roles.reset)
    finally:
        crew.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
