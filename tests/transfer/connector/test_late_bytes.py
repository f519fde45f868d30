"""Requests that end while their bytes are under way: blocks are free when nothing writes to them.

NIXL can't cancel: over TCP the bytes of a READ land even after its handle and its peer are gone.
"""

from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import IN_FLIGHT, Scene, scene

FRESH = 0x3C
"""What the next tenant of the blocks writes there."""


def frozen_in_flight(crew: Crew) -> Scene:
    """A reader whose bytes are under way, and a producer that is stopped."""
    play = scene(crew, IN_FLIGHT, transports="tcp")
    play.reader.call(roles.start)
    play.reader.call(roles.freeze_when_in_flight, play.producer.pid)
    return play


def reuse_and_look(play: Scene) -> None:
    """Waits for the blocks, gives them to somebody else, and looks whether bytes still come."""
    play.producer.resume()
    assert play.reader.call(roles.settled, 10.0)
    play.reader.call(roles.overwrite, FRESH, "d")
    # whatever was under way in this connection has come before these bytes
    play.producer.call(roles.offer, "after")
    play.reader.call(roles.start, "after")
    assert play.reader.call(roles.outcome, "after")["kind"] == ""
    play.reader.call(roles.compare_over, FRESH)


def test_an_aborted_request_keeps_its_blocks_until_its_last_byte_has_landed(crew: Crew):
    play = frozen_in_flight(crew)
    play.reader.call(roles.abort)
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "aborted"
    assert "request 'r'" in found["error"]
    assert found["seconds"] < 1.0
    assert found["invalid"] == play.blocks
    assert not found["settled"]
    assert not play.reader.call(roles.settled, 0.2)
    reuse_and_look(play)


def test_a_request_whose_producer_is_stopped_ends_but_keeps_its_blocks(crew: Crew):
    play = frozen_in_flight(crew)
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "lost"
    assert found["seconds"] < 8.0
    assert not found["settled"]
    assert play.reader.call(roles.resources)["postings"] == 1
    reuse_and_look(play)


def test_a_lost_peer_is_forgotten_once_nothing_of_it_is_under_way(crew: Crew):
    play = frozen_in_flight(crew)
    assert play.reader.call(roles.outcome)["kind"] == "lost"
    play.reader.call(roles.until, "d", "links", 0)
    assert play.reader.call(roles.resources)["peers"] == 1
    play.producer.kill()
    play.reader.call(roles.until, "d", "peers", 0)
    assert play.reader.call(roles.settled, 5.0)


def test_a_deadline_ends_a_request_but_not_its_bytes(crew: Crew):
    play = scene(crew, IN_FLIGHT, transports="tcp")
    play.reader.call(roles.start, "r", 0.8)
    play.reader.call(roles.freeze_when_in_flight, play.producer.pid)
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "deadline"
    assert "request 'r', producer rank 0: not done within 0.8 s" in found["error"]
    assert not found["settled"]
    reuse_and_look(play)


def test_an_abort_before_any_byte_moves_frees_the_blocks_at_once(crew: Crew):
    play = scene(crew)
    play.producer.stop()
    play.reader.call(roles.start)
    play.reader.call(roles.abort)
    found = play.reader.call(roles.outcome)
    assert (found["kind"], found["settled"]) == ("aborted", True)
    play.producer.resume()


def test_a_reader_that_gives_up_frees_the_blocks_of_its_producer(crew: Crew):
    play = scene(crew)
    play.reader.call(roles.dawdle, 1e3)
    play.reader.call(roles.start)
    play.reader.call(roles.until, "d", "links", 1)
    play.reader.call(roles.until_claimed)
    play.reader.call(roles.abort)
    assert play.reader.call(roles.outcome)["kind"] == "aborted"
    assert play.producer.call(roles.until_ended) == [("r", "abandoned")]
