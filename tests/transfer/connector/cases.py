"""Cases of the planner's cross product, carried out by real processes over real NIXL."""

from dataclasses import dataclass
from functools import cache, partial
from itertools import count

from blockstride.transfer import StrategyChoice
from blockstride.transfer.connector import ConnectorSettings, Counters
from blockstride.transfer.connector.pairing import pair, plan_options
from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew
from tests.transfer.support import HandOver, random_hand_over

WAYS: tuple[tuple[StrategyChoice, bool], ...] = (
    ("direct", False),
    ("pages", False),
    ("direct", True),
    ("pack", False),
    ("auto", False),
    ("pack", True),
)
"""Strategy, and whether the producer writes."""

MAX_RANKS = 8
"""Producing ranks of a case, and so agents, at most."""

MAX_WORLD = 24
"""Ranks of an engine at most: making larger ones takes longer than what is tested."""

UNKNOWN = "tcp://127.0.0.1:9"
"""The address of a rank that nobody asks for."""


@dataclass(frozen=True)
class Case:
    """One sequence between two random engines.

    Attributes:
        seed: Makes the engines.
        strategy: How the reader reads.
        push: Whether the producer writes instead.
        rank: The reading rank.
        ranks: The producing ranks that it talks to.
    """

    seed: int
    strategy: StrategyChoice
    push: bool
    rank: int
    ranks: tuple[int, ...]

    @property
    def settings(self) -> ConnectorSettings:
        return settings_of(self.hand_over, self.strategy, self.push)

    @property
    def hand_over(self) -> HandOver:
        return hand_over_of(self.seed)

    def __str__(self) -> str:
        how = "pushed" if self.push else "pulled"
        return f"{self.seed}-{self.strategy}-{how}-from-{len(self.ranks)}"


@cache
def hand_over_of(seed: int) -> HandOver:
    return random_hand_over(seed)


def settings_of(made: HandOver, strategy: StrategyChoice, push: bool) -> ConnectorSettings:
    return ConnectorSettings(
        strategy=strategy,
        push=push,
        max_tokens=max(1, made.num_tokens),
        max_states=made.snapshots,
    )


def cases(number: int) -> list[Case]:
    """The first cases that can be carried out with few agents, every way in turn."""
    found: list[Case] = []
    for seed in count():
        if len(found) == number:
            return found
        strategy, push = WAYS[len(found) % len(WAYS)]
        made = hand_over_of(seed)
        if max(made.local.world_size, made.remote.world_size) > MAX_WORLD:
            continue
        rank = seed % made.local.world_size
        options = plan_options(settings_of(made, strategy, push))
        try:
            pairing = pair(made.local, rank, made.remote, options)
        except ValueError:  # packing of tokens that are dealt out
            continue
        ranks = tuple(sorted({*pairing.ranks, rank % made.remote.world_size}))
        if len(ranks) <= MAX_RANKS:
            found.append(Case(seed, strategy, push, rank, ranks))
    raise AssertionError("counting does not end")


def carry_out(case: Case, crew: Crew) -> Counters:
    """Moves a case between one reading process and up to five producing ones.

    Every byte of the reader's memory is compared, and the descriptors that NIXL says that it used
    with those that the plan promised.

    Returns:
        The counters of whoever moved the bytes, added up.
    """
    producers = min(len(case.ranks), 5)
    *rest, reader = crew.hire(producers + 1)
    make = partial(random_hand_over, case.seed)
    for i, process in enumerate(rest):
        process.send(roles.produce, make, case.ranks[i::producers], case.settings)
    known = {rank: address for process in rest for rank, address in process.result().items()}
    world = range(case.hand_over.remote.world_size)
    addresses = [known.get(rank, UNKNOWN) for rank in world]
    moved = reader.call(roles.move, make, case.rank, case.settings, addresses)
    if case.push:
        writers = [
            process.call(roles.counters, f"p{rank}")
            for i, process in enumerate(rest)
            for rank in case.ranks[i::producers]
        ]
        moved.merged = sum(writer.merged for writer in writers)
        moved.predicted = sum(writer.predicted for writer in writers)
        moved.nbytes = sum(writer.nbytes for writer in writers)
        moved.descriptors = sum(writer.descriptors for writer in writers)
    assert moved.merged == moved.predicted, f"{case}: NIXL {moved.merged}, plan {moved.predicted}"
    crew.dismiss(roles.reset)
    return moved
