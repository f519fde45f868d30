"""The books of hand-overs: blocks change hands when all ranks have said so, and not before."""

import pytest

from blockstride.models import SamplingParams
from blockstride.models.distributed.life import Event
from blockstride.models.distributed.messages import (
    Held,
    Hold,
    Outcome,
    Read,
    Settled,
    Start,
    Stop,
    Token,
)
from tests.models.distributed.paper import ID, PROMPT, Books


@pytest.fixture
def books():
    return Books()


def test_a_sequence_is_held_when_all_ranks_hold_it(books):
    books.held()
    (hold,) = books.told
    assert isinstance(hold, Hold)
    assert hold.num_tokens == len(PROMPT)
    assert [len(ids) for _, ids in hold.blocks] == [3, 1]
    assert not books.engine.has_work
    books.hear(Outcome(7, Event.OFFERED))
    assert Held(ID) not in books.said
    books.hear(Outcome(7, Event.OFFERED))
    assert books.said[-1] == Held(ID)


def test_held_blocks_come_back_when_no_rank_holds_them_any_more(books):
    books.held()
    books.jobs.on(ID, Event.STOP)
    assert books.told[-1] == Stop(ID)
    # who was asked before it was not wanted any more
    books.hear(Outcome(7, Event.OFFERED), Outcome(7, Event.OFFERED), Outcome(7, Event.RETURNED))
    assert Held(ID) not in books.said
    assert not books.engine.is_whole
    books.hear(Outcome(7, Event.RETURNED))
    assert books.engine.is_whole
    assert len(books.jobs) == 0


def test_a_request_goes_on_when_its_blocks_have_arrived_on_all_ranks(books):
    books.start(source="elsewhere")
    (read,) = books.told
    assert isinstance(read, Read)
    assert (read.request_id, read.source, read.num_tokens) == (ID, "elsewhere", len(PROMPT))
    books.hear(Outcome(7, Event.ARRIVED))
    assert not books.engine.has_work
    books.hear(Settled(7), Outcome(7, Event.ARRIVED))
    (request,) = books.engine.scheduler.running
    assert request.num_uncached == 1
    books.step(1)
    books.hear(Settled(7))
    assert books.said[-1].tokens == [Token(ID, 1, "length")]
    assert books.engine.is_whole


@pytest.mark.parametrize("gone", [False, True])
def test_a_read_that_failed_on_one_rank_is_computed_again_in_other_blocks(books, gone):
    books.start(source="elsewhere")
    (read,) = books.told
    if gone:
        books.jobs.on_source_gone("another")
        assert books.told == [read]
        books.jobs.on_source_gone("elsewhere")
    else:
        books.hear(Outcome(7, Event.ARRIVED), Outcome(7, Event.LOST, "lost"))
    assert books.told[-1] == Stop(ID)
    assert books.jobs.failed_reads == 1
    books.engine.scheduler.admit()
    (request,) = books.engine.scheduler.running
    books.engine.step()
    anew = books.engine.blocks.held(request.request_id)
    for (_, apart), (_, ids) in zip(read.blocks, anew, strict=True):
        assert not set(apart.tolist()) & set(ids.tolist())
    books.step(1)
    assert books.said[-1].tokens == [Token(ID, 1, "length")]
    books.hear(Outcome(7, Event.LOST, "late"), Settled(7))
    assert not books.engine.is_whole
    books.hear(Settled(7))
    assert books.engine.is_whole


def test_what_is_here_of_a_sequence_is_not_read_again_and_a_block_in_part_is_copied(books):
    books.start(1, source="elsewhere")
    books.hear(*[Outcome(1, Event.ARRIVED), Settled(1)] * 2)
    books.step(1)
    books.start(2, source="elsewhere")
    first, second = books.told
    (_, tokens), (_, states) = second.blocks
    # of ten tokens two blocks of four are shared, and two tokens are in the copy of a third
    assert (second.blocks[0][0], len(tokens), second.present[0]) == (2, 1, 2)
    assert len(states) == 1
    assert second.copies == [(0, first.blocks[0][1][2], tokens[0])]
    shared, whole = books.engine.blocks.held(2)[0][1], first.blocks[0][1]
    assert shared[:2].tolist() == whole[:2].tolist()
    books.hear(*[Outcome(2, Event.LOST, "lost"), Settled(2)] * 2)
    books.step(4)
    assert [Token(2, 1, "length")] in [each.tokens for each in books.said]
    assert books.engine.is_whole


def test_reads_wait_for_blocks_in_order_of_arrival(books):
    for request_id in range(5):
        books.start(request_id, source="elsewhere")
    assert [command.request_id for command in books.told] == [0, 1, 2, 3]
    books.jobs.on_source_gone("another")
    books.hear(*[Outcome(2, Event.ARRIVED), Settled(2)] * 2)
    books.step(1)
    books.engine.scheduler.admit()
    assert [command.request_id for command in books.told] == [0, 1, 2, 3, 4]


def test_blocks_of_an_aborted_read_come_back_when_it_has_settled_on_all_ranks(books):
    books.start(source="elsewhere")
    books.jobs.on(ID, Event.STOP)
    assert books.told[-1] == Stop(ID)
    assert not books.engine.has_work
    for _ in range(2):
        assert not books.engine.is_whole
        books.hear(Outcome(7, Event.LOST, "aborted"), Settled(7))
    assert books.engine.is_whole
    assert books.jobs.failed_reads == 0


def test_a_read_that_has_not_begun_is_aborted_without_telling_ranks(books):
    for request_id in range(5):
        books.start(request_id, source="elsewhere")
    books.jobs.on(4, Event.STOP)
    books.jobs.on(4, Event.STOP)
    assert len(books.told) == 4
    assert not books.engine.has_work


def test_a_request_that_an_engine_refuses_ends_with_an_error_and_no_other_does(books):
    books.start(1)
    books.jobs.start(Start(2, [1000], [], SamplingParams(), 20))
    (token,) = books.said[-1].tokens
    assert (token.request_id, token.finish_reason) == (2, "error")
    assert "tokens from 0 to" in token.error
    books.step(3)
    assert books.said[-1].tokens == [Token(1, 1, "length")]


def test_events_of_unknown_requests_change_nothing(books):
    for event in Event:
        books.jobs.on(99, event)
        books.hear(Outcome(99, event))
    books.hear(Settled(99))
    assert books.engine.is_whole
