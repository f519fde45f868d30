"""Requests that the producer writes: blocks are in its hands until it says that they aren't."""

from dataclasses import replace

import pytest

from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import IN_FLIGHT, QUICK, scene

PUSH = replace(QUICK, push=True)


def test_a_written_request_is_as_good_as_a_read_one(crew: Crew):
    play = scene(crew, reader=PUSH)
    assert play.read()["kind"] == ""
    play.reader.call(roles.compare)
    assert play.producer.call(roles.until_ended) == [("r", "read")]
    assert play.reader.call(roles.counters).nbytes == 0
    assert play.producer.call(roles.counters, "p0").nbytes > 0


def test_blocks_of_an_aborted_push_are_free_once_the_producer_has_stopped(crew: Crew):
    play = scene(crew, IN_FLIGHT, transports="tcp", reader=PUSH)
    play.producer.call(roles.dawdle, 0.3)
    play.reader.call(roles.start)
    play.reader.call(roles.until, "d", "links", 1)
    play.producer.call(roles.until, "p0", "sessions", 1)
    play.producer.stop()
    play.reader.call(roles.abort)
    found = play.reader.call(roles.outcome)
    assert (found["kind"], found["settled"]) == ("aborted", False)
    assert not play.reader.call(roles.settled, 0.3)
    play.producer.resume()
    assert play.reader.call(roles.settled, 10.0)
    play.reader.call(roles.overwrite, 0x3C, "d")
    # a session later, whatever was under way has come
    play.producer.call(roles.offer, "after")
    play.reader.call(roles.start, "after")
    assert play.reader.call(roles.outcome, "after")["kind"] == ""
    play.reader.call(roles.compare_over, 0x3C)


def test_blocks_of_a_push_are_free_once_another_life_answers_for_a_dead_producer(crew: Crew):
    play = scene(crew, reader=PUSH)
    port = int(play.address.rpartition(":")[2])
    play.producer.call(roles.dawdle, 1e3)
    play.reader.call(roles.start)
    play.reader.call(roles.until, "d", "links", 1)
    play.producer.kill()
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "lost"
    assert not found["settled"]
    (heir,) = crew.hire(1)
    heir.call(roles.produce, play.make, [0], replace(QUICK, port=port), "")
    assert play.reader.call(roles.settled, 10.0)


def test_pages_cannot_be_written_as_their_reader_would_have_to_convert_them(crew: Crew):
    for strategy in ("pages", "auto"):
        with pytest.raises(ValueError, match=f"strategy: expected direct or pack .*'{strategy}'"):
            replace(PUSH, strategy=strategy)
    # nor for a reader that asks all the same
    play = scene(crew, reader=replace(QUICK, strategy="pages", max_tokens=128))
    play.reader.call(roles.ask_to_be_written_to)
    found = play.read()
    assert found["kind"] == "refused"
    assert "expected direct or pack to be written, got pages" in found["error"]
    assert found["settled"]
