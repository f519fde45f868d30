"""The books of hand-overs: blocks change hands when all ranks have said so, and not before."""

import pytest

from blockstride.models import Engine, EngineConfig, SamplingParams
from blockstride.models.distributed.hand_over import HandOvers
from blockstride.models.distributed.rank_messages import (
    Arrived,
    GiveUp,
    LeaseOver,
    Load,
    Offer,
    Offered,
    Settled,
    Withdraw,
)
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.loading import load_model

PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)
PROMPT = [5] * 20


class TwoRanks(Ranks):
    """Two ranks that keep what they are told; a test answers for them."""

    def __init__(self) -> None:
        super().__init__(())
        self.told: list = []

    def __len__(self) -> int:
        return 2

    def tell(self, command) -> None:
        self.told.append(command)


class Books:
    """An engine, its hand-overs, and what came of them."""

    def __init__(self, path, num_blocks) -> None:
        config = EngineConfig(num_blocks=num_blocks, max_num_seqs=3)
        self.engine = Engine(load_model(path, config, device="cpu"), config)
        self.ranks, self.held = TwoRanks(), []
        self.hand_overs = HandOvers(self.engine, self.ranks, self.held.append)
        self.all_blocks = self.engine.blocks.num_free

    def computed(self):
        """A request that has just got its first token."""
        request = self.engine.add_request(PROMPT, PARAMS)
        self.engine.step()
        return request

    def loading(self, name="r"):
        """A request that is being read."""
        request = self.engine.new_request(PROMPT, PARAMS, [7])
        self.hand_overs.load(name, request, "elsewhere")
        self.engine.scheduler.admit()
        return request

    @property
    def is_whole(self) -> bool:
        self.engine.blocks.check()
        return self.engine.blocks.num_free == self.all_blocks


@pytest.fixture
def books(reference):
    return Books(reference.path, (4, 7))


def test_a_sequence_is_held_when_all_ranks_hold_it(books):
    request = books.computed()
    books.hand_overs.hold("r", request)
    (offer,) = books.ranks.told
    assert isinstance(offer, Offer)
    assert offer.num_tokens == len(PROMPT)
    assert [len(ids) for _, ids in offer.blocks] == [1, 2]
    assert not books.engine.has_work
    books.hand_overs.on(Offered("r"))
    assert not books.held
    books.hand_overs.on(Offered("r"))
    assert books.held == ["r"]


def test_held_blocks_come_back_when_no_rank_holds_them_any_more(books):
    books.hand_overs.hold("r", books.computed())
    assert books.hand_overs.drop("r")
    assert isinstance(books.ranks.told[-1], Withdraw)
    books.hand_overs.on(LeaseOver("r"))
    assert not books.is_whole
    books.hand_overs.on(LeaseOver("r"))
    assert books.is_whole


def test_a_request_goes_on_when_its_blocks_have_arrived_on_all_ranks(books):
    request = books.loading()
    (load,) = books.ranks.told
    assert isinstance(load, Load)
    assert (load.num_tokens, load.source) == (len(PROMPT), "elsewhere")
    books.hand_overs.on(Arrived("r", ""))
    assert not books.engine.has_work
    books.hand_overs.on(Settled("r"))
    books.hand_overs.on(Arrived("r", ""))
    assert books.engine.scheduler.running == [request]
    assert request.num_uncached == 1
    books.hand_overs.on(Settled("r"))
    books.engine.abort(request)
    assert books.is_whole


def test_what_one_rank_could_not_read_is_computed_again_in_other_blocks(books):
    request = books.loading()
    (load,) = books.ranks.told
    books.hand_overs.on(Arrived("r", ""))
    books.hand_overs.on(Arrived("r", "lost"))
    assert isinstance(books.ranks.told[-1], GiveUp)
    assert books.hand_overs.failed_loads == 1
    assert request.num_cached == 0
    while request.finish_reason is None and len(request.output_ids) < 3:
        books.engine.step()
    anew = books.engine.blocks.held(request.request_id)
    for (_, apart), (_, ids) in zip(load.blocks, anew, strict=True):
        assert not set(apart.tolist()) & set(ids.tolist())
    books.engine.abort(request)
    assert not books.is_whole
    books.hand_overs.on(Settled("r"))
    assert not books.is_whole
    books.hand_overs.on(Settled("r"))
    assert books.is_whole


def test_loads_wait_for_blocks_in_the_order_in_which_they_came(books):
    first, *_ = [books.loading(name) for name in "abcde"]
    for _ in range(2):
        books.hand_overs.on(Arrived("a", ""))
        books.hand_overs.on(Settled("a"))
    books.engine.scheduler.admit()
    assert [command.name for command in books.ranks.told] == ["a", "b", "c"]
    books.engine.abort(first)
    books.engine.scheduler.admit()
    assert [command.name for command in books.ranks.told] == ["a", "b", "c", "d"]


def test_a_load_that_nobody_wants_is_forgotten_once_it_has_settled(books):
    request = books.loading()
    assert books.hand_overs.drop("r")
    for _ in range(2):
        books.hand_overs.on(Arrived("r", "aborted"))
        books.hand_overs.on(Settled("r"))
    assert not books.engine.has_work
    assert books.hand_overs.failed_loads == 0
    assert books.is_whole
    assert not books.hand_overs.drop("r")
    assert request.output_ids == [7]


def test_what_is_computed_again_is_the_engines_own_whatever_still_reads(books):
    request = books.loading()
    books.hand_overs.on(Arrived("r", "lost"))
    assert not books.hand_overs.drop("r")
    assert list(books.engine.scheduler.waiting) == [request]
    books.engine.abort(request)
    books.hand_overs.on(Arrived("r", "aborted"))
    for _ in range(2):
        books.hand_overs.on(Settled("r"))
    assert books.is_whole


def test_a_load_that_has_not_begun_is_the_engines_own(books):
    *_, last = [books.loading(name) for name in "abcd"]
    assert not books.hand_overs.drop("d")
    books.engine.abort(last)
    assert len(books.ranks.told) == 3
    assert not books.engine.has_work


def test_a_request_that_goes_on_is_the_engines_own(books):
    request = books.loading()
    for _ in range(2):
        books.hand_overs.on(Arrived("r", ""))
    assert not books.hand_overs.drop("r")
    assert books.engine.scheduler.running == [request]
