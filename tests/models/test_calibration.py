"""Calibration ends whatever the other process does."""

import operator
import time
from multiprocessing import Pipe
from unittest.mock import Mock

import pytest

from blockstride.models.commands import calibration
from blockstride.transfer.errors import TransferError


@pytest.mark.parametrize(
    ("owner", "error", "match"),
    [
        (len, ValueError, "expected its agent, got an end"),
        # waits for what never comes, and ends with the pipe
        (operator.methodcaller("poll", 300), TimeoutError, "expected a start"),
    ],
    ids=["dies at once", "never starts"],
)
def test_an_owner_that_fails_is_an_error_in_time(owner, error, match, monkeypatch, capfd):
    monkeypatch.setattr(calibration, "_own_memory", owner)
    seconds = 30.0 if error is ValueError else 1.0
    monkeypatch.setattr(calibration, "DEADLINE_SECONDS", seconds)
    monkeypatch.setattr(calibration, "REGION_BYTES", 1 << 20)
    begin = time.monotonic()
    with pytest.raises(error, match=match):
        calibration.measure_cost_model()
    assert time.monotonic() - begin < 60
    capfd.readouterr()


def test_a_read_that_fails_is_no_measurement(monkeypatch):
    here, there = Pipe()
    there.send((b"metadata", 1))
    agent = Mock()
    posting = agent.prepare_rows.return_value.post.return_value
    posting.error = TransferError("NIXL about a peer: state ERR")
    monkeypatch.setattr(calibration, "REGION_BYTES", 1 << 20)
    monkeypatch.setattr(calibration, "_agent", lambda _: (agent, 1))
    with pytest.raises(ValueError, match=r"expected 1 READs of 8 bytes, got .*state ERR"):
        calibration._read_seconds(here)(1, 8)
