"""Saves of one sequence never meet, and nobody writes to a file that is whole."""

import os

import pytest

from blockstride.transfer.connector import DeadlineError
from blockstride.transfer.tiers import CacheFile, CacheFileWriter, HostCache
from tests.transfer.connector.bulk import bulk
from tests.transfer.tiers.conftest import Hands, hands_of

CASE = bulk(2)
SIZES = CASE.remote, CASE.num_tokens


@pytest.fixture
def one():
    """An engine of one rank that saves, and its like that loads."""
    with hands_of(CASE) as hands:
        yield hands


def saved(hands: Hands, path, **options) -> CacheFileWriter:
    writer = CacheFileWriter(path, *SIZES, **options)
    hands.save(writer)
    return writer


def descriptors_of(folder) -> int:
    """Files of a folder that this process has open."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith(str(folder)) for link in links)


def test_two_saves_of_one_sequence_have_files_of_their_own_and_the_last_seal_stays(one, tmp_path):
    path = tmp_path / "a.cache"
    first, second = saved(one, path, tag=b"first"), saved(one, path, tag=b"second")
    assert first.save_id != second.save_id
    assert len(list(tmp_path.iterdir())) == 2
    second.seal()
    with CacheFile(path) as reader:
        first.seal()
        # who had it open reads on
        one.check(reader)
        assert reader.tag == b"second"
    with CacheFile(path) as file:
        one.check(file)
        assert file.tag == b"first"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_another_writer_has_open_is_not_sealed(one, tmp_path):
    writer = saved(one, tmp_path / "a.cache")
    other = CacheFileWriter(tmp_path / "a.cache", *SIZES, save_id=writer.save_id, join=True)
    with pytest.raises(ValueError, match="every other writer to have closed it"):
        writer.seal()
    other.close()
    writer.seal()
    with pytest.raises(FileNotFoundError):
        CacheFileWriter(tmp_path / "a.cache", *SIZES, save_id=writer.save_id, join=True)
    for write in (lambda: one.save(writer), lambda: one.save(other)):
        with pytest.raises(ValueError, match="closed"):
            write()


def test_a_file_under_a_reader_keeps_its_bytes_whoever_saves_again(one, tmp_path):
    path = tmp_path / "a.cache"
    saved(one, path).seal()
    before = path.read_bytes()
    with path.open("rb") as reader:
        again = saved(one, path, tag=b"again")
        again.seal()
        assert reader.read() == before


def test_a_save_that_is_left_with_an_error_leaves_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="parts of all ranks"),
        CacheFileWriter(tmp_path / "a.cache", *SIZES) as writer,
    ):
        writer.seal()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "host"])
def test_what_a_write_has_failed_of_is_never_whole(one, tmp_path, monkeypatch, kind):
    made = CacheFileWriter(tmp_path / "a.cache", *SIZES)
    store = made if kind == "file" else HostCache(*SIZES)
    is_file = store is made
    offloader = one.offloader(CASE.remote, 0, CASE.source(0), timeout_seconds=0.1)
    nixl = offloader._agent.nixl.agent
    with monkeypatch.context() as patch:
        patch.setattr(nixl, "transfer", lambda _: "PROC")
        patch.setattr(nixl, "check_xfer_state", lambda _: "PROC")
        with pytest.raises(DeadlineError):
            offloader.write(store, one.request.remote)
        if is_file:
            # NIXL may still be at work, on a descriptor that nothing else can get meanwhile
            made.close()
            assert descriptors_of(tmp_path) == 1
    with pytest.raises(ValueError, match="closed" if is_file else "may still be written to"):
        offloader.write(store, one.request.remote)
    with pytest.raises(ValueError, match="closed" if is_file else "may still be written to"):
        made.seal() if is_file else store.expect_readable()
    # what has stopped is given back by the next call
    made.abandon()
    offloader.write(HostCache(*SIZES), one.request.remote)
    assert offloader._kept == []
    assert descriptors_of(tmp_path) == 0


def test_a_writer_that_has_failed_is_not_sealed(one, tmp_path):
    writer = saved(one, tmp_path / "a.cache")
    with pytest.raises(KeyError), writer.writing(0):
        raise KeyError
    with pytest.raises(ValueError, match="may still be written to"):
        writer.seal()
    with pytest.raises(ValueError, match="may still be written to"):
        one.save(writer)
    writer.abandon()
    assert not list(tmp_path.iterdir())
