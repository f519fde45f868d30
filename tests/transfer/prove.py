"""The cross product of all that two engines may differ in: moved bytes equal a direct re-shard.

    python -m tests.transfer.prove              every case, every reading rank
    python -m tests.transfer.prove --sample N   N x N engines for each model and pair of sizes,
                                                one reading rank each
    python -m tests.transfer.prove --random N   and then N pairs of engines that differ in anything
                                                else too, by every strategy, with proofs

In processes of its own, since shape checks of every call would cost far more than the cases.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product

import numpy as np

from blockstride.transfer import EngineTransferInfo, Strategy
from tests.transfer.executor import Storages
from tests.transfer.support import (
    BLOCK_SIZES,
    GROUPS,
    KV_HEADS,
    NUM_TOKENS,
    HandOver,
    Side,
    random_hand_over,
    sides,
    tp_sizes,
)

Unit = tuple[int, int, int]
"""KV heads, groups and tensor-parallel size of a reader: the cases that one process works off."""

UNITS: list[Unit] = sorted(
    ((h, g, tp) for h, g in product(KV_HEADS, GROUPS) for tp in tp_sizes(h, g)),
    key=lambda unit: -unit[2],
)


@lru_cache(maxsize=1000)
def engine(side: Side) -> EngineTransferInfo:
    return side.engine()


@lru_cache(maxsize=4000)
def source(side: Side, rank: int) -> Storages:
    return HandOver(engine(side), engine(side), NUM_TOKENS).source(rank)


@lru_cache(maxsize=4000)
def expected(side: Side, rank: int) -> tuple[Storages, Storages]:
    return HandOver(engine(side), engine(side), NUM_TOKENS).expected(rank)


def cases(unit: Unit, sample: int | None) -> Iterator[tuple[Side, Side]]:
    """Pairs of reader and producer."""
    kv_heads, groups, tp_size = unit
    for other in tp_sizes(kv_heads, groups):
        readers = sides(kv_heads, groups, tp_size, reads=True)
        producers = sides(kv_heads, groups, other, reads=False)
        if sample is None:
            pairs = product(readers, producers)
            yield from (p for p in pairs if (p[0].block_size, p[1].block_size) in BLOCK_SIZES)
            continue
        # the same few engines of a size in every pair, since filling their memory takes longest
        chosen = []
        for candidates, tp in ((readers, tp_size), (producers, other)):
            rng = np.random.default_rng([kv_heads, groups, tp])
            chosen.append([candidates[i] for i in rng.permutation(len(candidates))[:sample]])
        yield from product(*chosen)


def check(reader: Side, producer: Side, ranks: Iterable[int]) -> None:
    hand_over = HandOver(engine(reader), engine(producer), NUM_TOKENS)
    for rank in ranks:
        got = hand_over.run(hand_over.plan(rank), partial(source, producer))
        hand_over.compare(rank, got, *expected(reader, rank))


def check_unit(unit: Unit, sample: int | None) -> int:
    """Checks the cases of a unit; returns how many."""
    count = 0
    for count, (reader, producer) in enumerate(cases(unit, sample), start=1):
        ranks = range(unit[2]) if sample is None else [count % unit[2]]
        try:
            check(reader, producer, ranks)
        except Exception as error:
            raise RuntimeError(f"{reader} <- {producer}: {error}") from error
    return count


def check_random(seed: int) -> None:
    """Moves one sequence between two random engines, by every strategy."""
    hand_over = random_hand_over(seed)
    rank = seed % hand_over.local.world_size
    strategies: list[Strategy] = ["direct", "pages"]
    # packing needs tokens dealt as on the reader, or not at all
    if hand_over.remote.cp_size == 1:
        strategies.append("pack")
    for strategy in strategies:
        try:
            hand_over.check(strategy, ranks=[rank])
            hand_over.plan(rank, strategy).prove()
        except Exception as error:
            raise RuntimeError(f"random hand-over {seed}, {strategy}: {error}") from error


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="engines for each size; all when absent")
    parser.add_argument("--random", type=int, default=0, help="number of random hand-overs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args(argv)
    done = 0
    # a fork has imported all; where Python doesn't trust it, processes start from nothing
    start = "fork" if sys.platform == "linux" else "spawn"
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context(start)) as pool:
        results = pool.map(partial(check_unit, sample=args.sample), UNITS)
        for unit, count in zip(UNITS, results, strict=True):
            done += count
            heads, groups, tp_size = unit
            what = f"{heads} KV heads, {groups} groups, read by {tp_size} ranks"
            sys.stdout.write(f"{what}: {count} cases right, {done} in all\n")
            sys.stdout.flush()
        for seed, _ in enumerate(pool.map(check_random, range(args.random), chunksize=8), start=1):
            if seed % 100 == 0 or seed == args.random:
                sys.stdout.write(f"{seed} random hand-overs right\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
