"""Peers that die, stop, come back or were never there; every request ends, and says with whom."""

import signal
from dataclasses import replace
from functools import partial

from tests.transfer.connector import roles
from tests.transfer.connector.bulk import staged
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import IN_FLIGHT, QUICK, scene


def test_a_producer_that_died_before_ends_the_request_at_its_deadline(crew: Crew):
    play = scene(crew)
    play.producer.kill()
    found = play.read(seconds=1.5)
    assert found["kind"] == "deadline"
    assert found["seconds"] < 3.0
    assert "request 'r'" in found["error"]
    assert "producer" in found["error"]
    assert found["invalid"] == play.blocks
    assert found["settled"]
    play.reader.call(roles.compare_untouched)


def test_a_producer_that_dies_while_bytes_move_fails_its_request_alone(crew: Crew):
    play = scene(crew, IN_FLIGHT, transports="tcp")
    play.reader.call(roles.start)
    play.reader.call(roles.freeze_when_in_flight, play.producer.pid)
    play.producer.kill()
    found = play.reader.call(roles.outcome)
    assert found["kind"] == "lost"
    # NIXL says so, well before a heartbeat is missed
    assert "request 'r', producer rank 0: NIXL about producer/0/" in found["error"]
    assert found["invalid"] == play.blocks
    assert play.reader.call(roles.settled, 5.0)
    play.reader.call(roles.until, "d", "peers", 0)


def test_memory_of_a_dead_producer_is_given_back_without_another_handshake(crew: Crew):
    play = scene(crew)
    assert play.read()["kind"] == ""
    play.reader.call(roles.compare)
    before = play.reader.call(roles.resources)
    assert (before["peers"], before["links"]) == (1, 1)
    play.producer.kill()
    play.reader.call(roles.until, "d", "links", 0)
    play.reader.call(roles.until, "d", "peers", 0)
    assert play.read("another", seconds=1.0)["kind"] == "deadline"


def test_a_request_waits_for_a_producer_that_is_started_again(crew: Crew):
    play = scene(crew)
    assert play.read()["kind"] == ""
    play.producer.call(roles.close)
    play.reader.call(roles.until, "d", "links", 0)
    play.reader.call(roles.start, "later")
    play.reader.call(roles.until_failed_handshakes, 2)
    same_port = replace(QUICK, port=int(play.address.rpartition(":")[2]))
    play.producer.call(roles.start_again, 0, same_port, "later")
    assert play.reader.call(roles.outcome, "later")["kind"] == ""
    play.reader.call(roles.compare)
    assert play.reader.call(roles.counters).handshakes == 2


def test_a_producer_may_come_back_at_another_address_with_other_memory(crew: Crew):
    play = scene(crew)
    assert play.read()["kind"] == ""
    play.producer.kill()
    (again,) = crew.hire(1)
    addresses = again.call(roles.produce, play.make, [0], QUICK, "later")
    play.reader.call(roles.add_peer, "producer", [addresses[0]])
    assert play.read("later")["kind"] == ""
    play.reader.call(roles.until, "d", "peers", 1)


def test_an_address_that_is_told_again_leaves_its_link_alone(crew: Crew):
    play = scene(crew)
    assert play.read()["kind"] == ""
    play.reader.call(roles.add_peer, "producer", [play.address])
    play.producer.call(roles.offer, "again")
    assert play.read("again")["kind"] == ""
    assert play.reader.call(roles.counters).handshakes == 1


def test_a_producer_that_is_stopped_but_alive_does_not_hold_a_request_for_ever(crew: Crew):
    play = scene(crew)
    assert play.read()["kind"] == ""
    play.producer.call(roles.offer, "second")
    play.producer.call(roles.offer, "third")
    play.producer.stop()
    found = play.read("second")
    assert found["kind"] == "lost"
    assert found["seconds"] < 8.0
    assert "request 'second', producer rank 0: no answer to a renew within 1.5 s" in found["error"]
    play.producer.resume()
    play.producer.call(roles.offer, "fourth")
    assert play.read("fourth")["kind"] == ""


def test_a_reader_that_dies_leaves_its_blocks_to_the_producer_in_time(crew: Crew):
    play = scene(crew)
    play.reader.call(roles.send_me, signal.SIGKILL, False)
    play.reader.call(roles.start)
    assert play.producer.call(roles.until_ended) == [("r", "expired")]
    play.producer.call(roles.until, "p0", "sessions", 0)
    (other,) = crew.hire(1)
    other.call(roles.prepare_reader, play.make, 0, QUICK, [play.address])
    play.producer.call(roles.offer, "r")
    other.call(roles.start)
    assert other.call(roles.outcome)["kind"] == ""
    assert play.producer.call(roles.until_ended) == [("r", "read")]


def test_blocks_that_the_other_rank_has_confirmed_are_not_called_invalid(crew: Crew):
    case = partial(staged, 8)
    *ranks, reader = crew.hire(3)
    addresses = [
        process.call(roles.produce, case, [rank], QUICK, "first")[rank]
        for rank, process in enumerate(ranks)
    ]
    reader.call(roles.prepare_reader, case, 0, QUICK, addresses)
    for rank, process in enumerate(ranks):
        process.call(roles.offer, "second", f"p{rank}")
        process.call(roles.offer, "third", f"p{rank}")
    reader.call(roles.start, "second")
    assert reader.call(roles.outcome, "second")["kind"] == ""
    ranks[1].stop()
    reader.call(roles.start, "third")
    found = reader.call(roles.outcome, "third")
    assert found["kind"] == "lost"
    assert "request 'third', producer rank 1" in found["error"]
    _, state = case().request().local
    assert found["invalid"] == [[], state.ids.tolist()]
