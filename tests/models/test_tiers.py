"""What pools have no room for comes back from host memory and files, and no token is another."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import KVCachePool, full_attention, mamba1, plan_pools
from blockstride.models import Engine, EngineConfig
from blockstride.models.block_copies import copy_blocks, move_blocks
from blockstride.models.loading import load_model
from tests.models.generations import tokens
from tests.models.test_prefix_cache import (
    UNSHRUNK,
    VOCAB,
    Traffic,
    answer,
    finish,
    forgetful,
    greedy,
    store_of,
)

FINGERPRINT = "the weights of a test"


def make(path, **config) -> Engine:
    sizes = {"max_num_seqs": 2, "max_len": 200, "cache_bytes": 1 << 22, "host_cache_bytes": 1 << 22}
    made = EngineConfig(**{"poison": True, **sizes, **config})
    return Engine(load_model(path, made, device="cpu"), made, fingerprint=FINGERPRINT)


@pytest.fixture(scope="module", params=["jamba", "gemma2", "granite3", "recurrent_gemma"])
def model(request, make_reference):
    path = make_reference(family=request.param).path
    return path, forgetful(path)


def tiers_of(engine):
    """Its tiers."""
    assert engine.tiers is not None
    return engine.tiers


def forget(engine):
    """Has the pools evict everything."""
    store_of(engine).evict([pool.num_blocks for pool in engine.blocks.pools])
    assert [*store_of(engine).tree.nodes()] == []
    engine.blocks.check()
    tiers_of(engine).blocks.check()


def test_what_is_evicted_comes_back_from_host_memory(model):
    path, known = model
    engine = make(path, host_cache_bytes=1 << 23)
    chat = tokens(VOCAB, 60)
    ids, _ = answer(engine, chat)
    forget(engine)
    chat = [*chat, *ids, *tokens(VOCAB, 7, 1)]
    got, count = answer(engine, chat)
    assert got == known(chat)
    assert count == len(chat) - 8
    assert store_of(engine).stats.host_tokens == count
    engine.close()


def test_what_is_evicted_comes_back_from_files_after_a_restart(model, tmp_path):
    path, known = model
    engine = make(path, file_cache=tmp_path)
    trunk = tokens(VOCAB, 60)
    ids, _ = answer(engine, trunk)
    engine.close()
    engine = make(path, file_cache=tmp_path, policy="unified", layout="LBNHC", block_size=48)
    chat = [*trunk, *ids, *tokens(VOCAB, 7, 1)]
    got, count = answer(engine, chat)
    assert got == known(chat)
    assert count == len(chat) - 8
    assert store_of(engine).stats.file_tokens == count
    engine.close()


def test_a_prompt_that_comes_again_after_restarts_is_known_from_the_third_time_on(
    reference, tmp_path
):
    prompt, counts = tokens(VOCAB, 50), []
    for _ in range(3):
        engine = make(reference.path, file_cache=tmp_path)
        counts.append(answer(engine, prompt)[1])
        engine.close()
    assert counts == [0, 0, 49]


def test_a_file_that_is_damaged_is_a_miss_and_removed(model, tmp_path):
    path, known = model
    engine = make(path, file_cache=tmp_path)
    prompt = tokens(VOCAB, 50)
    answer(engine, prompt)
    engine.close()
    files = sorted(tmp_path.glob("*/*"), key=lambda file: file.stat().st_size)
    for file in files:
        whole = bytearray(file.read_bytes())
        whole[-7] ^= 1
        file.write_bytes(whole)
    files[0].write_bytes(b"no cache file")
    engine = make(path, file_cache=tmp_path)
    longer = [*prompt, *tokens(VOCAB, 20, 1)]
    got, count = answer(engine, longer)
    assert (got, count) == (known(longer), 0)
    stats = engine.report().prefixes
    assert stats is not None
    assert (stats.file_tokens, stats.damaged_files) == (0, 1 if len(files) == 1 else 2)
    engine.close()


def test_files_keep_to_their_bytes_and_what_was_of_use_last_stays(reference, tmp_path):
    engine = make(reference.path, file_cache=tmp_path)
    prompts = [tokens(VOCAB, 40, seed) for seed in range(5)]
    answer(engine, prompts[0], count=1)
    forget(engine)
    tiers_of(engine).flush(9.0)
    [one] = tmp_path.glob("*/*")
    most = one.stat().st_size * 7 // 2
    engine.close()
    engine = make(reference.path, file_cache=tmp_path, file_cache_bytes=most)
    for prompt in prompts[1:]:
        answer(engine, prompt, count=1)
        forget(engine)
        tiers_of(engine).flush(9.0)
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= most
    assert len([*tmp_path.glob("*/*")]) == 3
    engine.close()
    engine = make(reference.path, file_cache=tmp_path)
    found = [answer(engine, [*prompt, 5], count=1)[1] for prompt in prompts]
    assert found == [0, 0, 40, 40, 40]
    engine.close()


def test_requests_go_on_while_another_waits_for_a_tier(reference):
    engine = make(reference.path, host_cache_bytes=1 << 23)
    prompt = tokens(VOCAB, 60)
    answer(engine, prompt)
    forget(engine)
    told, promote = [], tiers_of(engine)._tell
    tiers_of(engine)._tell = told.append
    slow = [engine.add_request([*prompt, seed], greedy(3)) for seed in (7, 8)]
    other = engine.add_request(tokens(VOCAB, 30, 1), greedy(3))
    while other.finish_reason is None:
        engine.step()
    assert all(request.num_cached == 0 for request in slow)
    # one is brought back for both, and one of them doesn't wait for it
    assert len(told) == 1
    engine.abort(slow[0])
    promote(told[0])
    finish(engine)
    assert slow[1].num_resumed == 60
    assert slow[0].finish_reason == "abort"
    engine.close()
    tiers_of(engine).blocks.check()


class TieredTraffic(Traffic):
    """Traffic on an engine that now and then has to give all its blocks back."""

    def step(self) -> None:
        super().step()
        if self.rng.random() < 0.1:
            store_of(self.engine).evict([pool.num_blocks for pool in self.engine.blocks.pools])
        tiers_of(self.engine).blocks.check()


@given(seed=st.integers(0, 10**9))
@UNSHRUNK
def test_whatever_moves_between_tiers_tokens_stay(model, tmp_path_factory, seed):
    path, known = model
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("files")
    for _ in range(2):
        size = rng.choice([4, 16])
        engine = make(
            path,
            policy=rng.choice(["split", "unified"]),
            layout=rng.choice(["BLHNC", "BHLNC"]),
            block_size=size,
            cache_bytes=rng.choice([1 << 20, 1 << 22]),
            host_cache_bytes=rng.choice([1 << 20, 1 << 22]),
            file_cache=rng.choice(["", "", folder]),
            file_cache_bytes=rng.choice([1 << 18, 1 << 24]),
            prefill_chunk=rng.choice([None, 16]),
            max_len=110,
        )
        TieredTraffic(rng, engine, known).run(8)
        engine.close()
        forget(engine)
        everything = [pool.num_blocks - 1 for pool in engine.blocks.pools]
        assert not engine.blocks.lacking(everything)


@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC", "BHLNC", "LHBNC"])
def test_blocks_move_between_devices_as_within_one(layout):
    layers = {
        "a": full_attention(2, 16, torch.float8_e4m3fn),
        "b": mamba1(32, 4, 4, conv_dtype=torch.bfloat16),
        "c": full_attention(2, 16, torch.float8_e4m3fn),
    }
    sizes = {"policy": "split", "block_size": 8, "kernel_block_size": 4}
    ours, *hosts = (
        [KVCachePool(plan) for plan in plan_pools(layers, layout=layout, num_blocks=n, **sizes)]
        for n in (9, 6, 6)
    )
    for pool in (*ours, *hosts[0], *hosts[1]):
        pool.storage.random_(-128, 128, generator=torch.Generator().manual_seed(1))
    source, *targets = (
        [(pool, placed) for pool in pools for placed in pool.layout.groups]
        for pools in (ours, *hosts)
    )
    before = [pool.storage.clone() for pool in hosts[0]]
    copies = torch.tensor([[0, 8, 1], [0, 2, 5], [1, 3, 4]], dtype=torch.int32)
    copy_blocks(source, copies, targets[0])
    for index in (0, 1):
        pairs = zip(
            *(each[index][1].planes(each[index][0].storage) for each in (source, targets[1])),
            strict=True,
        )
        parts = source[index][1].kernel_blocks
        blocks = copies[copies[:, 0] == index, 1:].T
        ids = (blocks[:, :, None] * parts + torch.arange(parts)).flatten(1)
        for read, written in pairs:
            move_blocks(read, written, ids.long())
    for old, one, other in zip(before, *hosts, strict=True):
        assert torch.equal(one.storage, other.storage)
        assert not torch.equal(one.storage, old)
