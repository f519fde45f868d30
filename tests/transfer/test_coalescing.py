"""Coalescing: runs are as long as both memories allow, and hold the same bytes as before."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.layouts import KVCacheLayout, full_attention
from blockstride.layouts.groups import group_layers
from blockstride.transfer import EngineTransferInfo, plan_transfer
from blockstride.transfer.coalescing import Dim, Nest, coalesce
from blockstride.transfer.group_plan import GroupPlan
from tests.transfer.support import hybrid, random_hand_over

DIMS = st.lists(
    st.builds(Dim, st.integers(1, 4), st.sampled_from([2, 4, 8, 24]), st.sampled_from([2, 4, 8])),
    max_size=3,
)


def byte_pairs(nests: list[Nest]) -> set[tuple[int, int]]:
    """Every (local byte, remote byte) that nests copy."""
    pairs = set()
    for nest in nests:
        for local, remote in zip(*nest.offsets(), strict=True):
            pairs |= {(int(local) + i, int(remote) + i) for i in range(nest.length)}
    return pairs


@given(DIMS)
def test_absorbing_axes_keeps_every_pair_of_bytes(dims):
    nest = Nest(3, 5, 2, tuple(dims))
    assert byte_pairs([nest.absorb()]) == byte_pairs([nest])


def test_an_axis_joins_the_run_only_where_both_strides_equal_it():
    dims = (Dim(4, 8, 8), Dim(2, 32, 32), Dim(3, 64, 128))
    assert Nest(0, 0, 8, dims).absorb() == Nest(0, 0, 64, (Dim(3, 64, 128),))
    assert Nest(0, 0, 8, (Dim(4, 8, 16),)).absorb().length == 8


def test_keys_and_values_of_a_token_become_one_run_where_both_sides_pack_them():
    tokens = (Dim(16, 32, 32),)
    nests = [Nest(0, 100, 16, tokens), Nest(16, 116, 16, tokens)]
    assert coalesce(nests) == [Nest(0, 100, 512, ())]
    apart = [Nest(0, 100, 16, tokens), Nest(16, 300, 16, tokens)]
    assert coalesce(apart) == apart


def descriptors_per_block(source: str, destination: str, remote_tp: int, local_tp: int) -> int:
    specs = {f"layers.{i}": full_attention(8, 128, torch.bfloat16) for i in range(4)}
    local, remote = (
        EngineTransferInfo(name, specs, KVCacheLayout(order), "unified", 16, (64,), tp_size=tp)
        for name, order, tp in (("d", destination, local_tp), ("p", source, remote_tp))
    )
    return plan_transfer(local, 0, remote).report(16).descriptors


@pytest.mark.parametrize(
    ("source", "destination", "same", "to_more", "to_fewer"),
    [
        ("LBHNC", "LBHNC", 4, 4, 16),
        ("LBNHC", "LBNHC", 4, 64, 256),
        ("BLHNC", "BLHNC", 1, 4, 16),
        ("BHLNC", "BHLNC", 1, 1, 4),
        ("LBHNC", "LBNHC", 512, 256, 512),
    ],
)
def test_descriptors_per_block_are_the_fewest_for_each_pair_of_orders(
    source, destination, same, to_more, to_fewer
):
    assert descriptors_per_block(source, destination, 1, 1) == same
    assert descriptors_per_block(source, destination, 1, 2) == to_more
    assert descriptors_per_block(source, destination, 4, 1) == to_fewer


def adjacent_runs(plan: GroupPlan) -> int:
    """Pairs of runs that follow each other on both sides within one block of each."""
    runs = {}
    for track in plan.tracks:
        for row in range(track.rows.start, track.rows.stop):
            where = (track.local_block, track.remote_block)
            local, remote = int(plan.local.offsets[row]), int(plan.remote.offsets[row])
            runs[(*where, local, remote)] = int(plan.lengths[row])
    return sum(
        (lb, rb, local + length, remote + length) in runs
        for (lb, rb, local, remote), length in runs.items()
    )


@pytest.mark.parametrize("seed", [0, 1, 5, 6, 7])
def test_no_two_runs_of_a_plan_could_be_one(seed):
    hand_over = random_hand_over(seed)
    plan = hand_over.plan(seed % hand_over.local.world_size)
    groups = [group for peer in plan.peers for group in peer.wire.groups]
    assert groups
    assert sum(adjacent_runs(group) for group in groups) == 0


@pytest.mark.parametrize("kernel_block_size", [None, 16])
def test_kernel_blocks_that_follow_each_other_move_as_one_run(kernel_block_size):
    specs = hybrid(4, 1)
    engines = [
        EngineTransferInfo(
            name,
            specs,
            KVCacheLayout.BLHNC,
            "split",
            64,
            (8,) * len(group_layers(specs, "split")),
            kernel_block_size=kernel_block_size,
        )
        for name in ("d", "p")
    ]
    plan = plan_transfer(engines[0], 0, engines[1])
    full = plan.peers[0].wire.groups[0]
    assert np.array_equal(full.lengths, [2 * 64 * 4 * 8])
