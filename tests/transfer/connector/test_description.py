"""Descriptions: what a peer learns of an engine is enough to plan with, and checked throughout."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from blockstride.transfer.connector.description import (
    EngineDescription,
    check_memory,
    describe,
    engine_of,
)
from blockstride.transfer.connector.pairing import pair, plan_options
from blockstride.transfer.connector.settings import ConnectorSettings
from blockstride.transfer.nixl import Memory
from tests.transfer.connector.bulk import SPECS, bulk, staged
from tests.transfer.support import HandOver, random_hand_over

SEEDS = (1, 6, 8, 12, 17)


def again(made: HandOver) -> Any:
    """The producer as its reader knows it, by way of bytes."""
    encoded = msgspec.msgpack.encode(describe(made.remote))
    return engine_of(msgspec.msgpack.decode(encoded, type=EngineDescription), made.local)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_described_engine_keeps_its_memory_and_its_groups(seed: int):
    made = random_hand_over(seed)
    info = again(made)
    assert [g.layer_names for g in info.groups] == [g.layer_names for g in made.remote.groups]
    for rank in range(info.world_size):
        theirs, ours = info.rank_cache(rank), made.remote.rank_cache(rank)
        assert theirs.pool_bytes == ours.pool_bytes
        for index, group in ours.groups.items():
            assert theirs.groups[index].placement.fields == group.placement.fields


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_with_a_described_engine_is_the_plan_with_the_engine(seed: int):
    made = random_hand_over(seed)
    options = plan_options(ConnectorSettings(max_tokens=64, max_states=2))
    plans = [pair(made.local, 0, info, options).plan for info in (made.remote, again(made))]
    reads = [plan.reads(made.request()) for plan in plans]
    for ours, theirs in zip(*reads, strict=True):
        assert ours.remote_rank == theirs.remote_rank
        assert ours.wire.local.tolist() == theirs.wire.local.tolist()
        assert ours.wire.remote.tolist() == theirs.wire.remote.tolist()


def test_memory_must_be_that_which_the_engine_implies():
    info = bulk(8).remote
    sizes = dict(info.rank_cache(0).pool_bytes)
    right = Memory("DRAM", 0, {pool: (pool + 1) << 30 for pool in sizes}, sizes)
    check_memory(info, 0, right)
    for wrong, message in (
        ({"addresses": {}, "sizes": {}}, "pools of"),
        ({"addresses": {0: 1 << 30}}, "pools of"),
        ({"sizes": {**sizes, 1: 1}}, "pools of"),
        ({"addresses": {0: 1 << 30, 1: 1 << 30}}, "separate ones"),
        ({"addresses": {0: 1 << 30, 1: 2**63 - 2}}, "separate ones"),
        ({"addresses": {0: 0, 1: 2 << 30}}, "separate ones"),
        ({"kind": "FILE"}, "expected memory, got a file"),
    ):
        with pytest.raises(ValueError, match=message):
            check_memory(info, 0, msgspec.structs.replace(right, **wrong))


def test_ranks_of_whom_nobody_reads_are_told_by_one_reader_each():
    # four ranks share two heads, so two of them would wait for readers that never come
    specs = {"attention": SPECS["attention"]}
    engines = [
        replace(bulk(8).local, engine_id=name, specs=specs, num_blocks=(11,), tp_size=tp_size)
        for name, tp_size in (("reader", 2), ("producer", 4))
    ]
    options = plan_options(ConnectorSettings())
    pairings = [pair(engines[0], rank, engines[1], options) for rank in range(2)]
    read = {rank for pairing in pairings for rank in pairing.plan.mapping.all_source_ranks}
    assert len(read) == 2
    told = [rank for pairing in pairings for rank in pairing.ranks]
    assert [told.count(rank) for rank in range(4)] == [1, 1, 1, 1] == [*pairings[0].readers]


def test_invalid_blocks_are_those_of_ranks_that_have_not_confirmed():
    made = staged(8)
    pairing = pair(made.local, 0, made.remote, plan_options(ConnectorSettings()))
    local = made.request().local
    for confirmed, valid in ((set(), (False, False)), ({0}, (True, False)), ({0, 1}, (True, True))):
        found = pairing.invalid_blocks(made.num_tokens, local, confirmed)
        wanted = [
            blocks.ids[:0] if is_valid else blocks.ids
            for blocks, is_valid in zip(local, valid, strict=True)
        ]
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in wanted]


@pytest.mark.parametrize("seed", SEEDS)
def test_invalid_blocks_are_those_that_the_wire_would_have_written(seed: int):
    made = random_hand_over(seed)
    pairing = pair(made.local, 0, made.remote, plan_options(ConnectorSettings()))
    request = made.request()
    found = pairing.invalid_blocks(made.num_tokens, request.local, set())
    for group, blocks in enumerate(request.local):
        written = set()
        for peer, read in zip(pairing.plan.peers, pairing.plan.reads(request), strict=True):
            first = 0
            for plan in peer.wire.groups:
                stop = first + len(plan.lengths) * plan.local.count
                mine = read.wire.local[(read.wire.local >= first) & (read.wire.local < stop)]
                if plan.read.local_group == group:
                    kernel = (mine - first) % plan.local.count
                    written |= set((kernel // plan.local.split).tolist())
                first = stop
        assert set(found[group].tolist()) == written <= set(blocks.ids.tolist())
