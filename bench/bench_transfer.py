"""Hand-overs between processes: a 4,096-token prompt of a Jamba-like model, over real NIXL.

python -m bench.bench_transfer   every pair of stride orders, TP 1 -> 1 and 2 -> 1, predicted beside
                                 measured, and the rate that NIXL reaches with 1 MiB descriptors

The cost model is calibrated first, in the same processes. Blocks are scattered on both sides.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from statistics import median
from typing import Any, NamedTuple

import pytest

from bench.transfer_roles import (
    NUM_TOKENS,
    RAW_MIB,
    ROUNDS,
    Pair,
    connect_raw,
    end,
    engine,
    measure,
    offer,
    read,
    register_raw,
    start_producer,
    start_reader,
)
from blockstride.layouts import NAMED_LAYOUTS, KVCacheLayout
from blockstride.transfer import (
    CostModel,
    calibrate,
    plan_transfer,
)
from blockstride.transfer.connector import Counters
from tests.transfer.connector.processes import Crew, Process


class Result(NamedTuple):
    """The best of some rounds: what disturbs a measurement only ever adds to it.

    Attributes:
        seconds: From the request to its confirmation.
        wire_seconds: Inside NIXL.
        raw_seconds: What as many bytes take in descriptors of 1 MiB, between the same rounds.
        nbytes: Bytes.
        descriptors: After NIXL has merged neighbours.
    """

    seconds: float
    wire_seconds: float
    raw_seconds: float
    nbytes: int
    descriptors: int


@contextmanager
def crew() -> Iterator[tuple[Process, Process]]:
    """A process to produce and one to read."""
    made = Crew()
    try:
        producer, reader = made.hire(2)
        yield producer, reader
    finally:
        made.kill()


@contextmanager
def introduced(producer: Process, reader: Process, pair: Pair) -> Iterator[None]:
    """Both sides of a pair, started and ended."""
    reader.call(start_reader, pair, producer.call(start_producer, pair))
    try:
        yield
    finally:
        reader.call(end)
        producer.call(end)


def hand_over(producer: Process, reader: Process, name: str) -> tuple[float, Counters]:
    producer.call(offer, name)
    return reader.call(read, name)


def result(producer: Process, reader: Process, pair: Pair) -> Result:
    with introduced(producer, reader, pair):
        rounds, raw = [], []
        for i in range(ROUNDS + 1):
            rounds.append(hand_over(producer, reader, f"round {i}"))
            raw.append(reader.call(measure, RAW_MIB, 1 << 20, 1))
    seconds = [took for took, _ in rounds[1:]]
    wire = [_wire(after) - _wire(before) for (_, before), (_, after) in pairwise(rounds)]
    total = rounds[-1][1]
    nbytes, descriptors = total.nbytes // len(rounds), total.merged // len(rounds)
    raw_seconds = min(raw) * nbytes / (RAW_MIB << 20)
    return Result(min(seconds), min(wire), raw_seconds, nbytes, descriptors)


def _wire(counters: Counters) -> float:
    return counters.post_seconds + counters.wait_seconds


def predicted(pair: Pair, model: CostModel) -> float:
    """Seconds on the wire, from the plan."""
    producer = engine("producer", pair.producer, pair.tp_size)
    plan = plan_transfer(engine("reader", pair.reader, 1), 0, producer)
    return model.wire_seconds([peer.wire for peer in plan.peers], NUM_TOKENS)


def calibrated(producer: Process, reader: Process) -> CostModel:
    """A cost model of this machine."""
    reader.call(connect_raw, *producer.call(register_raw))
    return calibrate(partial(reader.call, measure), 1e9, "this machine, now")


def main() -> None:
    write = sys.stdout.write
    with crew() as (producer, reader):
        model = calibrated(producer, reader)
        alpha, rate = 1e6 * model.descriptor_seconds, model.wire_rate / 1e9
        write(f"a descriptor {alpha:.2f} us, long runs {rate:.2f} GB/s\n\n")
        titles = ("TP", "producer", "reader", "descriptors", "predicted ms", "NIXL ms", "all ms")
        titles += ("GB/s", "of the rate of 1 MiB descriptors")
        write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
        errors = []
        for tp_size, theirs, ours in product((1, 2), NAMED_LAYOUTS, NAMED_LAYOUTS):
            pair = Pair(ours, theirs, tp_size)
            found, expected = result(producer, reader, pair), predicted(pair, model)
            errors.append(abs(found.wire_seconds / expected - 1))
            times = [1e3 * s for s in (expected, found.wire_seconds, found.seconds)]
            columns = [f"{tp_size} -> 1", theirs, ours, f"{found.descriptors:,}"]
            columns += [f"{t:.1f}" for t in times]
            columns += [f"{found.nbytes / found.seconds / 1e9:.2f}"]
            columns += [f"{100 * found.raw_seconds / found.seconds:.0f} %"]
            write("| " + " | ".join(map(str, columns)) + " |\n")
            sys.stdout.flush()
        write(f"\nprediction off by {100 * median(errors):.0f} % (median)\n")


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Process, Process]]:
    with crew() as made:
        yield made


@pytest.mark.skipif(sys.platform != "linux", reason="NIXL is only published for Linux")
@pytest.mark.benchmark(group="hand-over", disable_gc=True)
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BHLNC"])
def test_a_hand_over(benchmark: Any, processes: Any, layout: str, tp_size: int):
    pair = Pair(KVCacheLayout(layout), KVCacheLayout(layout), tp_size)
    producer, reader = processes
    with introduced(producer, reader, pair):
        numbers = iter(range(1 << 30))

        def offered() -> tuple[tuple[str], dict[str, Any]]:
            name = f"round {next(numbers)}"
            producer.call(offer, name)
            return (name,), {}

        took, counters = benchmark.pedantic(
            partial(reader.call, read), setup=offered, rounds=ROUNDS, warmup_rounds=1
        )
    assert took > 0
    assert counters.merged == counters.predicted
    benchmark.extra_info["bytes"] = counters.nbytes // counters.requests
    benchmark.extra_info["descriptors"] = counters.merged // counters.requests


if __name__ == "__main__":
    main()
