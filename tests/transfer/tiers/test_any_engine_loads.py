"""What any engine has saved, any other engine of the model loads: every byte right, none else."""

import pytest

from blockstride.transfer.tiers import CacheFile, CacheFileWriter, HostCache
from tests.transfer.support import random_hand_over
from tests.transfer.tiers.conftest import hands_of


def test_four_ranks_save_and_two_of_another_layout_load_states_included(hands, tmp_path):
    writer = CacheFileWriter(tmp_path / "a.cache", hands.case.remote, hands.case.num_tokens)
    hands.save(writer)
    writer.seal()
    with CacheFile(tmp_path / "a.cache") as file:
        hands.check(file)


def test_four_ranks_save_to_host_memory_and_two_load(hands):
    host = HostCache(hands.case.remote, hands.case.num_tokens)
    hands.save(host)
    hands.check(host)


# those of engines of at most eight ranks, each of which is an agent
@pytest.mark.parametrize("seed", [1, 2, 6, 8, 9, 12, 13, 15, 17, 22])
def test_engines_that_differ_in_anything_exchange_files_and_host_caches(seed, tmp_path):
    case = random_hand_over(seed)
    assert case.remote.world_size <= 8
    sizes = case.remote, case.num_tokens, case.snapshots
    writer, host = CacheFileWriter(tmp_path / "a.cache", *sizes), HostCache(*sizes)
    some = seed % case.local.world_size
    with hands_of(case) as hands:
        hands.save(writer)
        hands.save(host)
        writer.seal()
        with CacheFile(tmp_path / "a.cache") as file:
            assert file.num_tokens == case.num_tokens
            hands.check(file, range(some, some + 1))
        hands.check(host, range(some, some + 1))


def test_a_host_cache_goes_to_a_file_like_any_engine(hands, tmp_path):
    host = HostCache(hands.case.remote, hands.case.num_tokens)
    hands.save(host)
    writer = CacheFileWriter(tmp_path / "a.cache", host.engine, host.num_tokens)
    pools = {pool: memory.numpy().view("u1") for pool, memory in host.pools.items()}
    moved = hands.offloader(host.engine, 0, pools).write(writer, host.blocks)
    writer.seal()
    # the orders are the same, so blocks that follow each other go in one piece
    assert moved.merged == len(host.engine.groups)
    with CacheFile(tmp_path / "a.cache") as file:
        hands.check(file)


def test_the_file_takes_hardly_more_than_the_bytes_of_the_sequence(hands, tmp_path):
    writer = CacheFileWriter(tmp_path / "a.cache", hands.case.remote, hands.case.num_tokens)
    engine = writer.engine
    live = sum(
        size * (count - 1)
        for size, count in zip(engine.block_bytes, engine.num_blocks, strict=True)
    )
    # a header, and one null block at most
    assert writer.place.nbytes <= live + 8192 + min(engine.block_bytes)
    writer.abandon()


def test_a_file_keeps_its_tag(hands, tmp_path):
    engine, tokens = hands.case.remote, hands.case.num_tokens
    writer = CacheFileWriter(tmp_path / "a.cache", engine, tokens, tag=b"digest of the tokens")
    hands.save(writer)
    writer.seal()
    with CacheFile(tmp_path / "a.cache") as file:
        assert file.tag == b"digest of the tokens"
    with pytest.raises(ValueError, match=r"^tag: expected at most 4194304 bytes, got 4194305"):
        CacheFileWriter(tmp_path / "b.cache", engine, tokens, tag=bytes((1 << 22) + 1))
