"""Stored caches of a fine-tune are refused by its fingerprint, to be loaded and to be saved to."""

from dataclasses import replace

import pytest

from blockstride.transfer.tiers import CacheFile, CacheFileWriter, HostCache, Offloader
from tests.transfer.connector.bulk import bulk
from tests.transfer.support import POISON, storages
from tests.transfer.tiers.conftest import tensors

CASE = bulk(4)
SIZES = CASE.remote, CASE.num_tokens
TUNED = replace(CASE.local, model_fingerprint="a fine-tune's")
REFUSED = r"^model_fingerprint of {}: expected {}, .*, got {}$"


@pytest.fixture
def stores(tmp_path):
    """The same sequence in host memory and in a file."""
    host, writer = HostCache(*SIZES), CacheFileWriter(tmp_path / "a.cache", *SIZES)
    with Offloader(CASE.remote, 0, tensors(CASE.source(0))) as offloader:
        for store in (host, writer):
            offloader.write(store, CASE.request().remote)
    writer.seal()
    with CacheFile(tmp_path / "a.cache") as file:
        yield host, file


def test_caches_of_a_fine_tune_are_refused_by_name_before_a_byte_moves(stores, tmp_path):
    got = storages(TUNED, 0)
    with Offloader(TUNED, 0, tensors(got)) as offloader:
        theirs = REFUSED.format("stored cache", "a fine-tune's", "the weights of a test")
        for store in stores:
            with pytest.raises(ValueError, match=theirs):
                offloader.read(store, CASE.request().local)
        assert all((memory == POISON).all() for memory in got.values())
        ours = REFUSED.format("reader", "the weights of a test", "a fine-tune's")
        for store in (HostCache(*SIZES), CacheFileWriter(tmp_path / "b.cache", *SIZES)):
            with pytest.raises(ValueError, match=ours):
                offloader.write(store, CASE.request().local)


def test_the_file_tells_which_model_it_is_of(stores):
    _, file = stores
    assert file.engine.model_fingerprint == CASE.remote.model_fingerprint


def test_an_engine_that_cannot_tell_its_model_stores_nothing(tmp_path):
    unknown = replace(CASE.remote, model_fingerprint="")
    for make in (
        lambda: HostCache(unknown, CASE.num_tokens),
        lambda: CacheFileWriter(tmp_path / "a.cache", unknown, CASE.num_tokens),
        lambda: Offloader(unknown, 0, tensors(storages(unknown, 0))),
    ):
        with pytest.raises(ValueError, match="expected the fingerprint of its model, got none"):
            make()
    assert not list(tmp_path.iterdir())
