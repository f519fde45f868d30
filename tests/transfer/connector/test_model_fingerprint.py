"""Caches of a fine-tune look like those of its base, and are refused by its fingerprint."""

from dataclasses import replace

import pytest

from blockstride.transfer.connector import Connector
from tests.transfer.connector import roles
from tests.transfer.connector.bulk import Bulk, bulk
from tests.transfer.connector.processes import Crew
from tests.transfer.connector.scenes import QUICK, scene


def fine_tuned(num_blocks: int) -> Bulk:
    """Two engines that differ in nothing but the weights of their models."""
    case = bulk(num_blocks)
    return replace(case, remote=replace(case.remote, model_fingerprint="a fine-tune's"))


@pytest.mark.parametrize("push", [False, True], ids=["read", "written"])
def test_caches_of_a_fine_tune_are_refused_by_name_before_a_byte_moves(push: bool, crew: Crew):
    play = scene(crew, make=fine_tuned, reader=replace(QUICK, push=push))
    found = play.read()
    assert found["kind"] == "refused"
    assert found["error"] == (
        "request 'r', producer rank 0: model_fingerprint of producer: "
        "expected the weights of a test, that of reader, got a fine-tune's"
    )
    assert found["settled"]
    play.reader.call(roles.compare_untouched)


def test_an_engine_that_cannot_tell_its_model_exchanges_nothing():
    unknown = replace(bulk().local, model_fingerprint="")
    with pytest.raises(
        ValueError,
        match=r"^model_fingerprint of reader: expected the fingerprint of its model, got none$",
    ):
        Connector(unknown)
