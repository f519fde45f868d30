"""The books of hand-overs: blocks change hands when all ranks have said so, and not before."""

import pytest

from blockstride.models import SamplingParams
from blockstride.models.distributed.life import Event
from blockstride.models.distributed.messages import Held, NewToken, Submit
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
from tests.models.distributed.paper import JOB, PROMPT, Books


@pytest.fixture
def books():
    return Books()


def test_a_sequence_is_held_when_all_ranks_hold_it(books):
    books.held()
    (offer,) = books.told
    assert isinstance(offer, Offer)
    assert offer.num_tokens == len(PROMPT)
    assert [len(ids) for _, ids in offer.blocks] == [3, 1]
    assert not books.engine.has_work
    books.hear(Offered("7"))
    assert Held(JOB) not in books.said
    books.hear(Offered("7"))
    assert books.said[-1] == Held(JOB)


def test_held_blocks_come_back_when_no_rank_holds_them_any_more(books):
    books.held()
    books.jobs.on(JOB, Event.STOP)
    assert isinstance(books.told[-1], Withdraw)
    # who was asked before it was not wanted any more
    books.hear(Offered("7"), Offered("7"), LeaseOver("7"))
    assert Held(JOB) not in books.said
    assert not books.engine.is_whole
    books.hear(LeaseOver("7"))
    assert books.engine.is_whole
    assert len(books.jobs) == 0


def test_a_request_goes_on_when_its_blocks_have_arrived_on_all_ranks(books):
    books.submit(source="elsewhere", source_job=3)
    (load,) = books.told
    assert isinstance(load, Load)
    assert (load.name, load.held_as, load.num_tokens) == ("7", "3", len(PROMPT))
    books.hear(Arrived("7", ""))
    assert not books.engine.has_work
    books.hear(Settled("7"), Arrived("7", ""))
    (request,) = books.engine.scheduler.running
    assert request.num_uncached == 1
    books.step(1)
    books.hear(Settled("7"))
    assert books.said[-1].tokens == [NewToken(JOB, 1, "length")]
    assert books.engine.is_whole


@pytest.mark.parametrize("gone", [False, True])
def test_what_one_rank_could_not_read_is_computed_again_in_other_blocks(books, gone):
    books.submit(source="elsewhere")
    (load,) = books.told
    if gone:
        books.jobs.on_source_gone("another")
        assert books.told == [load]
        books.jobs.on_source_gone("elsewhere")
    else:
        books.hear(Arrived("7", ""), Arrived("7", "lost"))
    assert isinstance(books.told[-1], GiveUp)
    assert books.jobs.failed_loads == 1
    books.engine.scheduler.admit()
    (request,) = books.engine.scheduler.running
    books.engine.step()
    anew = books.engine.blocks.held(request.request_id)
    for (_, apart), (_, ids) in zip(load.blocks, anew, strict=True):
        assert not set(apart.tolist()) & set(ids.tolist())
    books.step(1)
    assert books.said[-1].tokens == [NewToken(JOB, 1, "length")]
    books.hear(Arrived("7", "late"), Settled("7"))
    assert not books.engine.is_whole
    books.hear(Settled("7"))
    assert books.engine.is_whole


def test_loads_wait_for_blocks_in_the_order_in_which_they_came(books):
    for job in range(5):
        books.submit(job, source="elsewhere")
    assert [command.name for command in books.told] == ["0", "1", "2", "3"]
    books.jobs.on_source_gone("another")
    books.hear(*[Arrived("2", ""), Settled("2")] * 2)
    books.step(1)
    books.engine.scheduler.admit()
    assert [command.name for command in books.told] == ["0", "1", "2", "3", "4"]


def test_a_load_that_nobody_wants_is_forgotten_once_it_has_settled(books):
    books.submit(source="elsewhere")
    books.jobs.on(JOB, Event.STOP)
    assert isinstance(books.told[-1], GiveUp)
    assert not books.engine.has_work
    for _ in range(2):
        assert not books.engine.is_whole
        books.hear(Arrived("7", "aborted"), Settled("7"))
    assert books.engine.is_whole
    assert books.jobs.failed_loads == 0


def test_a_load_that_has_not_begun_is_just_forgotten(books):
    for job in range(5):
        books.submit(job, source="elsewhere")
    books.jobs.on(4, Event.STOP)
    books.jobs.on(4, Event.STOP)
    assert len(books.told) == 4
    assert not books.engine.has_work


def test_a_job_that_an_engine_cannot_do_ends_with_an_error_and_nothing_else_does(books):
    books.submit(1)
    books.jobs.submit(Submit(2, [1000], [], SamplingParams(), 20))
    (token,) = books.said[-1].tokens
    assert (token.job, token.finish_reason) == (2, "error")
    assert "tokens from 0 to" in token.error
    books.step(3)
    assert books.said[-1].tokens == [NewToken(1, 1, "length")]


def test_nobody_knows_a_job_that_is_over(books):
    for event in Event:
        books.jobs.on(99, event)
    books.hear(Offered("99"), LeaseOver("99"), Arrived("99", ""), Settled("99"))
    assert books.engine.is_whole
