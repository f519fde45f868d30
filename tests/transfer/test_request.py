"""Requests: block ids that can't be right are refused, and the rest become sorted index arrays."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    PoolPolicy,
    full_attention,
    mamba1,
    sliding_window_attention,
)
from blockstride.transfer import BlockIds, CopyPlan, EngineTransferInfo, TransferRequest, request
from tests.transfer.support import HandOver, random_hand_over

BF16 = torch.bfloat16
SPECS: dict[str, CacheSpec] = {
    "layers.0": full_attention(2, 4, BF16),
    "layers.1": mamba1(16, 4, 4, conv_dtype=BF16),
    "layers.2": sliding_window_attention(2, 4, BF16, window=6),
}


def hand_over(num_tokens: int = 10, policy: PoolPolicy = "unified", blocks: int = 20) -> HandOver:
    counts = (blocks,) if policy == "unified" else (blocks,) * 3
    local, remote = (
        EngineTransferInfo(name, SPECS, KVCacheLayout.LBHNC, policy, size, counts)
        for name, size in (("reader", 4), ("producer", 8))
    )
    return HandOver(local, remote, num_tokens)


def tables(**changed: BlockIds) -> TransferRequest:
    """A request of 10 tokens that is right, with some lists replaced: 4 and 8 tokens a block."""
    right = {
        "local_attention": BlockIds([1, 2, 3]),
        "local_state": BlockIds([4]),
        "local_window": BlockIds([6, 7], 1),
        "remote_attention": BlockIds([1, 2]),
        "remote_state": BlockIds([4]),
        "remote_window": BlockIds([5, 6]),
    }
    lists = list({**right, **changed}.values())
    return TransferRequest(10, lists[:3], lists[3:])


def test_the_request_that_the_others_differ_from_is_accepted():
    hand_over().plan(0).reads(tables())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"local_attention": BlockIds([1, 2, 20])},
            r"local ids of group 0 .* 1 to 19.*got 1 to 20",
        ),
        ({"local_attention": BlockIds([0, 2, 3])}, r"local ids of group 0 .*null block 0 excluded"),
        ({"remote_state": BlockIds([-1])}, r"remote ids of group 1 .*got -1 to -1"),
        ({"local_attention": BlockIds([1, 2, 2])}, r"local ids in pool 0: .*distinct.*got \[2\]"),
        ({"local_state": BlockIds([3])}, r"local ids in pool 0: .*distinct.*got \[3\]"),
        ({"local_attention": BlockIds([1, 2])}, r"local ids of group 0 .*3 blocks.*got 2 blocks"),
        ({"local_window": BlockIds([6, 7, 8], 1)}, r"local ids of group 2 .*2 blocks.*got 3"),
        ({"remote_attention": BlockIds([1])}, r"remote ids of group 0 .*2 blocks.*got 1 blocks"),
        (
            {"remote_attention": BlockIds([2], 1)},
            r"remote ids of group 0: .*position 0 .*got 1 and",
        ),
        ({"local_state": BlockIds([])}, r"local ids of group 1 .*at least one state, got none"),
        ({"local_state": BlockIds([4, 5])}, r"remote ids of group 1: .*at least 2 states, got 1"),
        ({"local_attention": BlockIds([1, 2, 3], 0, 4)}, r"fewer than 4 tokens present, got 4"),
        (
            {"local_attention": BlockIds([[1, 2, 3]])},
            r"local ids of group 0 .*one dimension, got 2",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_block_ids_that_cannot_be_right_are_refused_by_group_and_value(changed, message):
    with pytest.raises(ValueError, match=message):
        hand_over().plan(0).reads(tables(**changed))


def test_lists_for_other_groups_than_the_engine_has_are_refused():
    right = tables()
    with pytest.raises(ValueError, match="remote groups: expected 3 lists of ids, got 2"):
        hand_over().plan(0).reads(TransferRequest(10, right.local, right.remote[:2]))
    with pytest.raises(ValueError, match="num_tokens: expected at least 0, got -1"):
        hand_over().plan(0).reads(TransferRequest(-1, right.local, right.remote))
    # annotations, which tests enforce, would refuse it first
    check = inspect.unwrap(request.check_blocks)
    lists: Any = [blocks.ids.tolist() for blocks in right.local]
    with pytest.raises(TypeError, match="local groups: expected BlockIds, got list"):
        check("local", hand_over().plan(0).local, 10, lists)


def test_nothing_is_computed_before_all_ids_are_checked(monkeypatch):
    plan = hand_over().plan(0)
    monkeypatch.setattr(CopyPlan, "indices", lambda *_: pytest.fail("indices came first"))
    with pytest.raises(ValueError, match="null block"):
        plan.reads(tables(remote_state=BlockIds([0])))


def test_the_same_block_id_means_different_blocks_in_pools_of_their_own():
    plan = hand_over(policy="split").plan(0)
    plan.reads(tables(local_state=BlockIds([3]), local_window=BlockIds([1, 2], 1)))


def test_a_null_block_within_a_table_is_refused():
    with pytest.raises(ValueError, match="null block 0 excluded, got 0 to 3"):
        hand_over().plan(0).reads(tables(local_attention=BlockIds([2, 0, 3])))


def test_a_prefix_that_is_present_moves_no_attention_but_the_state_still_comes():
    plan = hand_over(8).plan(0)
    local = [BlockIds([], 2), BlockIds([4]), BlockIds([], 2)]
    remote = [BlockIds([1]), BlockIds([4]), BlockIds([2])]
    (read,) = plan.reads(TransferRequest(8, local, remote))
    state = next(g for g in plan.peers[0].wire.groups if g.read.local_group == 1)
    assert len(read.wire.local) == len(state.lengths)


def test_tokens_of_a_block_that_are_present_are_not_asked_for_but_where_they_share_a_run():
    specs: dict[str, CacheSpec] = {"layers.0": full_attention(1, 4, BF16)}
    reader, producer = (
        EngineTransferInfo(name, specs, KVCacheLayout.LBHNC, "split", size, (9,))
        for name, size in (("reader", 16), ("producer", 4))
    )
    plan = HandOver(reader, producer, 30).plan(0)
    whole = BlockIds([1, 2, 3, 4, 5, 6, 7, 8])
    [all_of_them] = plan.reads(TransferRequest(30, [BlockIds([1, 2])], [whole]))
    [rest] = plan.reads(TransferRequest(30, [BlockIds([2], 1, present=9)], [whole]))
    # tokens 25 to 29 lie in blocks of tokens 24 to 31
    assert set(rest.wire.remote % 9) == {7, 8}
    assert 4 * len(rest.wire.local) == len(all_of_them.wire.local)


def test_one_state_of_several_snapshots_is_the_newest():
    specs: dict[str, CacheSpec] = {"layers.0": mamba1(16, 4, 4, conv_dtype=BF16)}
    engines = [
        EngineTransferInfo(name, specs, KVCacheLayout.LBHNC, "split", 4, (9,)) for name in "dp"
    ]
    plan = HandOver(engines[0], engines[1], 16).plan(0)
    (read,) = plan.reads(TransferRequest(16, [BlockIds([3])], [BlockIds([7, 2, 5])]))
    assert set(read.wire.local % 9) == {3}
    assert set(read.wire.remote % 9) == {5}


def test_a_sequence_without_tokens_moves_nothing():
    plan = hand_over().plan(0)
    empty = [BlockIds([])] * 3
    (read,) = plan.reads(TransferRequest(0, empty, empty))
    assert len(read.wire.local) == len(read.wire.remote) == 0


@pytest.mark.parametrize("seed", [0, 1, 5, 6])
def test_index_arrays_are_contiguous_int32_with_local_blocks_ascending(seed):
    some = random_hand_over(seed)
    plan = some.plan(0)
    for peer, read in zip(plan.peers, plan.reads(some.request()), strict=True):
        for indices in read.wire:
            assert indices.dtype == np.int32
            assert indices.flags["C_CONTIGUOUS"]
        groups = peer.wire.groups
        ends = np.cumsum([len(g.lengths) * g.local.count for g in groups])
        for first, stop in zip([0, *ends[:-1]], ends, strict=True):
            part = read.wire.local[(read.wire.local >= first) & (read.wire.local < stop)]
            assert len(np.unique(part)) == len(part)
        assert len(read.wire.local) == len(read.wire.remote)


def test_scattered_blocks_are_sorted_so_that_neighbours_can_merge():
    specs: dict[str, CacheSpec] = {"layers.0": full_attention(2, 4, BF16)}
    engines = [
        EngineTransferInfo(name, specs, KVCacheLayout.LBHNC, "split", 4, (9,)) for name in "dp"
    ]
    plan = HandOver(engines[0], engines[1], 16).plan(0)
    sides = [BlockIds([7, 2, 8, 1])], [BlockIds([5, 3, 6, 2])]
    (read,) = plan.reads(TransferRequest(16, *sides))
    assert read.wire.local.tolist() == [1, 2, 7, 8]
    assert read.wire.remote.tolist() == [2, 3, 5, 6]


def test_ids_of_more_than_16_bits_are_sorted_and_their_duplicates_found():
    specs: dict[str, CacheSpec] = {"layers.0": full_attention(2, 4, BF16)}
    engines = [
        EngineTransferInfo(name, specs, KVCacheLayout.LBHNC, "split", 4, (1 << 20,))
        for name in "dp"
    ]
    plan = HandOver(engines[0], engines[1], 16).plan(0)
    remote = [BlockIds([1, 2, 3, 4])]
    ids = [70_000, 3, 65_536 + 3, 1]
    (read,) = plan.reads(TransferRequest(16, [BlockIds(ids)], remote))
    assert read.wire.local.tolist() == sorted(ids)
    assert read.wire.remote.tolist() == [4, 2, 3, 1]
    with pytest.raises(ValueError, match=r"distinct blocks, got \[70000\]"):
        plan.reads(TransferRequest(16, [BlockIds([70_000, 4464, 70_000, 1])], remote))


def test_more_descriptors_than_int32_can_number_are_an_error_that_counts_them():
    specs: dict[str, CacheSpec] = {"layers.0": full_attention(8, 4, BF16)}
    engines = [
        EngineTransferInfo(name, specs, layout, "split", 1024, (300_000,))
        for name, layout in (("d", KVCacheLayout.LBHNC), ("p", KVCacheLayout.LBNHC))
    ]
    with pytest.raises(ValueError, match=r"fewer than 2147483648, got 2457600000"):
        HandOver(engines[0], engines[1], 16).plan(0)
    assert HandOver(engines[0], engines[1], 16).plan(0, "auto").peers[0].strategy != "direct"


def lines_of_code(thing: Any) -> int:
    """Lines that are not blank, comments or documentation."""
    source, inside, count = inspect.getsource(thing), False, 0
    for line in source.splitlines():
        text = line.strip()
        quotes = text.count('"""')
        if quotes or inside:
            inside = inside != (quotes == 1)
            continue
        count += bool(text) and not text.startswith("#")
    return count


def test_the_path_of_a_request_can_be_read_in_150_lines():
    path = [request, CopyPlan.indices, CopyPlan._bases.func]
    assert sum(lines_of_code(part) for part in path) < 150
