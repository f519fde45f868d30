"""Requests that the producer writes: blocks are in its hands until it says that they aren't."""

from dataclasses import replace

import pytest

from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import IN_FLIGHT, QUICK, Scene, scene

PUSH = replace(QUICK, push=True)
BYTE = 0x3C
"""What all memory of a reader holds before it is written to."""


def interrupted(crew: Crew, transports: str) -> Scene:
    """A producer that is stopped, alive, after some of many chunks."""
    many = replace(QUICK, chunk_bytes=1 << 14)
    play = scene(crew, IN_FLIGHT, transports=transports, producer=many, reader=PUSH)
    play.reader.call(roles.overwrite, BYTE, "d")
    play.reader.call(roles.start)
    play.reader.call(roles.freeze_when_written_to, play.producer.pid, BYTE)
    play.producer.until_stopped()
    return play


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
    play.reader.call(roles.overwrite, BYTE, "d")
    # a session later, whatever was under way has come
    play.producer.call(roles.offer, "after")
    play.reader.call(roles.start, "after")
    assert play.reader.call(roles.outcome, "after")["kind"] == ""
    play.reader.call(roles.compare_over, BYTE)


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


@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_blocks_of_a_push_are_free_once_its_dead_producer_has_no_address(
    transports: str, crew: Crew
):
    play = interrupted(crew, transports)
    play.producer.kill()
    found = play.reader.call(roles.outcome)
    assert (found["kind"], found["settled"]) == ("lost", False)
    assert not play.reader.call(roles.settled, 0.3)
    play.reader.call(roles.add_peer, "producer", [])
    assert play.reader.call(roles.settled, 10.0)
    play.reader.call(roles.overwrite, BYTE, "d")
    (other,) = crew.hire(1, transports)
    addresses = other.call(roles.produce, play.make, [0], QUICK, "after")
    play.reader.call(roles.add_peer, "producer", [addresses[0]])
    assert play.read("after")["kind"] == ""
    play.reader.call(roles.compare_over, BYTE)


@pytest.mark.parametrize("transports", ["all", "tcp"])
def test_a_reader_that_dies_as_it_is_written_to_harms_nobody_else(transports: str, crew: Crew):
    play = interrupted(crew, transports)
    play.reader.kill()
    play.producer.resume()
    assert play.producer.call(roles.until_ended) == [("r", "abandoned")]
    play.producer.call(roles.until, "p0", "postings", 0)
    (other,) = crew.hire(1, transports)
    other.call(roles.prepare_reader, play.make, 0, PUSH, [play.address])
    play.producer.call(roles.offer, "r")
    other.call(roles.start)
    assert other.call(roles.outcome)["kind"] == ""
    assert play.producer.call(roles.until_ended) == [("r", "read")]


def test_a_push_that_is_withdrawn_stops_and_its_reader_comes_too_late(crew: Crew):
    play = scene(crew, reader=PUSH)
    play.producer.call(roles.dawdle, 0.5)
    play.reader.call(roles.start)
    play.producer.call(roles.until, "p0", "writing", 1)
    assert not play.producer.call(roles.withdraw, "r")
    assert play.producer.call(roles.until_ended) == [("r", "withdrawn")]
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "expired"
    assert found["settled"]
    play.reader.call(roles.compare_untouched)


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
