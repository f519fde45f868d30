"""A request that one engine can't serve goes to the next one that can."""

from functools import partial

import pytest

from tests.transfer.connector import roles
from tests.transfer.connector.bulk import bulk
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import QUICK, Scene, scene

FIRST, SECOND = "producer", "replica"
HELD = "held by both"


def two_sources(crew: Crew) -> Scene:
    """A producer, a reader, and a replica of the producer that holds the same request."""
    play = scene(crew)
    (replica,) = crew.hire(1)
    case = partial(bulk, 8, SECOND)
    addresses = replica.call(roles.produce, case, [0], QUICK, "")
    play.reader.call(roles.add_peer, SECOND, [addresses[0]])
    for holder in (play.producer, replica):
        holder.call(roles.offer, HELD)
    return play


@pytest.mark.parametrize("fault", ["it is dead", "it stops", "it does not hold the request"])
def test_a_request_goes_on_to_a_replica(fault: str, crew: Crew):
    play = two_sources(crew)
    if fault == "it is dead":
        play.producer.kill()
    elif fault == "it stops":
        play.producer.stop()
    else:
        play.producer.call(roles.withdraw, HELD)
    play.reader.call(roles.start, HELD, 20.0, (FIRST, SECOND))
    found = play.reader.call(roles.outcome, HELD)
    assert (found["kind"], found["source"]) == ("", SECOND)
    play.reader.call(roles.compare)
    assert play.reader.call(roles.counters).retries == 1


def test_the_first_choice_is_taken_when_it_works(crew: Crew):
    play = two_sources(crew)
    play.reader.call(roles.start, HELD, 20.0, (SECOND, FIRST))
    assert play.reader.call(roles.outcome, HELD)["source"] == SECOND
    assert play.reader.call(roles.counters).retries == 0


def test_a_failure_of_all_replicas_is_that_of_the_last(crew: Crew):
    play = two_sources(crew)
    play.producer.call(roles.withdraw, HELD)
    play.reader.call(roles.start, HELD, 20.0, (SECOND, FIRST))
    assert play.reader.call(roles.outcome, HELD)["kind"] == ""
    play.reader.call(roles.start, HELD, 20.0, (FIRST, SECOND))
    found = play.reader.call(roles.outcome, HELD)
    assert found["kind"] == "refused"
    assert "request 'held by both', replica rank 0" in found["error"]
    assert found["invalid"] == play.blocks


def test_an_engine_that_nobody_introduced_is_an_error_with_its_name(crew: Crew):
    play = scene(crew)
    play.reader.call(roles.start, "r", 20.0, ("stranger",))
    found = play.reader.call(roles.outcome)
    assert (
        "request 'r', stranger: unknown engine: expected its addresses by add_peer"
        in found["error"]
    )
