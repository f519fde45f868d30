"""A short run of the random load, and of the search for leaks; `make prove` has the long ones."""

import pytest

from tests.transfer.connector import load
from tests.transfer.connector.endurance import growth, hand_overs, restarts
from tests.transfer.connector.processes import Crew


@pytest.mark.parametrize(("transports", "push"), load.WAYS)
def test_under_random_faults_every_block_is_accounted_for_and_every_byte_right(
    transports: str, push: bool
):
    happened = load.run(3.0, 3, transports, push, right=11)
    assert happened["right"] > 10
    assert happened["(kill)"] + happened["(stop)"] > 0


def test_a_hundred_hand_overs_leave_nothing_behind(crew: Crew):
    assert growth(*hand_overs(crew, 30, 70)) == {}


def test_restarts_of_a_producer_leave_nothing_behind(crew: Crew):
    assert growth(*restarts(crew, 2, 3)) == {}
