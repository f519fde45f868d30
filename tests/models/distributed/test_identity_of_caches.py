"""Engines of two folders exchange caches if these hold the same model, and by no other measure."""

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from blockstride.models.distributed.messages import Hold, Outcome, Peer, Read, Setup
from blockstride.models.distributed.rank_transfers import RankTransfers
from blockstride.models.engine.pools import make_pools
from blockstride.models.fingerprint import model_fingerprint
from blockstride.models.loading import load_model
from blockstride.transfer.connector import ConnectorSettings
from tests.models.distributed.deployments import engine, until

NUM_TOKENS = 5


@pytest.fixture(scope="module")
def folder(make_reference):
    return make_reference().path


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture
def rank():
    """Makes the transfers of an engine of one rank, which end with the test."""
    made = []

    def make(path, engine_id: str) -> RankTransfers:
        config, settings = engine(), ConnectorSettings(cast=True)
        fingerprint = model_fingerprint(path)
        setup = Setup(
            engine_id, config, "cpu", str(path), "float32", "", settings, 60.0, fingerprint
        )
        model = load_model(path, config, dtype="float32", device="cpu")
        pools = make_pools(model, config)
        made.append(RankTransfers(setup, settings, model, pools, lambda: None))
        return made[-1]

    yield make
    for transfers in made:
        transfers.close()


def hand_over(producer: RankTransfers, reader: RankTransfers) -> str:
    """The error with which a sequence of one block arrives; "" if it does."""
    blocks = [(0, np.array([1], np.int32))] * len(producer.connector.info.groups)
    producer.do(Hold(3, NUM_TOKENS, blocks))
    reader.do(Peer("producer", (producer.address,)))
    reader.do(Read(3, NUM_TOKENS, blocks, "producer"))
    errors: list[str] = []

    def has_arrived() -> bool:
        errors.extend(event.error for event in reader.events() if isinstance(event, Outcome))
        return bool(errors)

    until(has_arrived)
    return errors[0]


def test_a_copy_of_a_checkpoint_elsewhere_is_the_same_model(folder, copy, rank):
    assert hand_over(rank(folder, "producer"), rank(copy, "reader")) == ""


def test_a_fine_tune_with_equal_shapes_is_refused_by_name(folder, copy, rank):
    weights = load_file(copy / "model.safetensors")
    weights["model.final_layernorm.weight"][0] += 1
    save_file(weights, copy / "model.safetensors")
    error = hand_over(rank(folder, "producer"), rank(copy, "reader"))
    ours, theirs = model_fingerprint(copy), model_fingerprint(folder)
    assert f"model_fingerprint of producer: expected {ours}, that of reader, got {theirs}" in error
