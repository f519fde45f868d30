"""The order that a drawing tells, against the address of every byte."""

import pytest
import torch
from hypothesis import given

from blockstride.layouts import GroupPlacement, KVCacheLayout, PoolLayout, plan_pools
from blockstride.layouts.memory_order import (
    StridedPiece,
    levels,
    one_block,
    one_half,
    one_unit,
    runs,
)
from tests.layouts.support import LAW, SPECS, TP_SIZES, addresses, pool_cases


def elements(pool: PoolLayout, placement: GroupPlacement) -> dict[str, dict[str, torch.Tensor]]:
    """For each field its addresses, and for each axis the index of every element; all flat."""
    storage = torch.zeros(pool.nbytes, dtype=torch.int8)
    found = {}
    for placed in placement.fields:
        at = torch.stack(
            [
                addresses(placement.view(storage, placed, slot), storage)
                for slot in range(len(placement.group.layer_names))
            ]
        ).unflatten(1, (placement.num_blocks, placement.kernel_blocks))
        names = ["layer", "block", "kernel block", *(axis.name for axis in placed.field.axes)]
        found[placed.field.name] = {"address": at.flatten()}
        for axis, name in enumerate(names):
            shape = [1] * at.dim()
            shape[axis] = at.shape[axis]
            index = torch.arange(at.shape[axis]).view(shape).expand_as(at)
            found[placed.field.name][name] = index.flatten()
    return found


def bytes_of(pool: PoolLayout, placement: GroupPlacement, keep: dict[str, int]) -> torch.Tensor:
    """Sorted addresses of the bytes of block 1 whose index on the cut axis is below `keep`."""
    found = []
    for placed in placement.fields:
        field = elements(pool, placement)[placed.field.name]
        wanted = field["block"] == min(1, pool.num_blocks - 1)
        if placed.field.shard and placed.field.name in keep:
            wanted &= field[placed.field.shard.axis] < keep[placed.field.name]
        size = placed.field.dtype.itemsize
        found.append((field["address"][wanted][:, None] + torch.arange(size)).flatten())
    return torch.cat(found).sort().values


def assert_runs_are(pieces: list[StridedPiece], wanted: torch.Tensor) -> None:
    """The runs hold exactly these bytes, and no two of them could be one."""
    breaks = (wanted.diff() != 1).nonzero().flatten()
    starts = torch.cat([wanted[:1], wanted[breaks + 1]])
    stops = torch.cat([wanted[breaks], wanted[-1:]])
    found = [torch.from_numpy(array) for array in runs(pieces)]
    assert torch.equal(found[0], starts)
    assert torch.equal(found[1], stops - starts + 1)


def num_runs(pieces: list[StridedPiece]) -> int:
    return len(runs(pieces)[0])


@LAW
@given(pool_cases())
def test_the_parts_of_every_level_fill_it_without_a_gap(case):
    pool = case.plan()
    for placement in pool.groups:
        found = levels(placement)
        assert found[0].whole.nbytes == pool.nbytes
        for level in found:
            at = level.whole.start
            at += level.axis.extent * level.axis.stride if level.axis else 0
            for part in level.parts:
                assert part.start == at
                at += part.nbytes
            assert at == level.whole.start + level.whole.nbytes


@LAW
@given(pool_cases())
def test_every_part_holds_what_its_label_says(case):
    pool = case.plan()
    for placement in pool.groups:
        fields = elements(pool, placement)
        segment = {f.name: s.name for s in placement.page.segments for f in s.fields}
        for level in levels(placement):
            for name, field in fields.items():
                inside = field["address"] - level.whole.start
                here = (inside >= 0) & (inside < level.whole.nbytes)
                if level.axis and here.any():
                    index = inside[here] // level.axis.stride
                    assert torch.equal(index, field[level.axis.name][here])
                for part in level.parts:
                    begin = part.start - level.whole.start
                    held = here & (inside >= begin) & (inside < begin + part.nbytes)
                    if part.label.split("[")[0] not in (name, segment[name]):
                        assert not held.any()


@LAW
@given(pool_cases())
def test_runs_of_a_block_are_its_bytes_in_the_longest_runs(case):
    pool = case.plan()
    for placement in pool.groups:
        assert_runs_are(one_block(placement), bytes_of(pool, placement, {}))


@LAW
@given(pool_cases())
def test_runs_of_a_unit_and_of_a_half_are_those_bytes(case):
    pool = case.plan()
    for placement in pool.groups:
        shards = {f.name: f.shard for f in placement.page.fields if f.shard}
        units = {name: shard.unit for name, shard in shards.items()}
        assert_runs_are(one_unit(placement), bytes_of(pool, placement, units))
        half = one_half(placement)
        if half is not None:
            halves = {
                name: size // 2 if size // shard.unit > 1 else size
                for name, shard in shards.items()
                for size in [shard.interval.size]
            }
            assert_runs_are(half, bytes_of(pool, placement, halves))


@pytest.mark.parametrize("kind", sorted(kind for kind in SPECS if 2 in TP_SIZES[kind]))
def test_a_half_is_what_one_of_twice_as_many_ranks_holds(kind):
    spec = SPECS[kind]
    parts = {"layout": KVCacheLayout.LBHNC, "policy": "split", "num_blocks": 2, "block_size": 4}
    half = one_half(plan_pools({"x": spec}, **parts)[0].groups[0])
    rank = plan_pools({"x": spec.tp_shard(0, 2)}, **parts)[0].groups[0]
    assert half is not None
    assert runs(half)[1].sum() == runs(one_block(rank))[1].sum()


def test_channels_of_odd_number_have_no_half():
    spec = SPECS["mha-bf16"].tp_shard(0, 8)
    odd = SPECS["short-conv-DS"].tp_shard(0, 16)
    parts = {"layout": KVCacheLayout.LBHNC, "policy": "split", "num_blocks": 2, "block_size": 4}
    # the one head of a rank may be shared, but 3 channels can't be halved
    assert one_half(plan_pools({"x": spec}, **parts)[0].groups[0]) is not None
    assert one_half(plan_pools({"x": odd}, **parts)[0].groups[0]) is None


# 8 heads, 4 layers, 16 tokens: runs of one block, and of one head of it
@pytest.mark.parametrize(
    ("order", "block", "head"),
    [
        ("LBHNC", 4, 4),
        ("LBNHC", 4, 64),
        ("LHBNC", 32, 4),
        ("BLHNC", 1, 4),
        ("BLNHC", 1, 64),
        ("BHLNC", 1, 1),
    ],
)
def test_named_orders_need_the_runs_they_are_known_for(order, block, head):
    [pool] = plan_pools(
        {f"{i}": SPECS["mha-bf16"] for i in range(4)},
        layout=KVCacheLayout(order),
        policy="unified",
        num_blocks=3,
        block_size=16,
    )
    [placement] = pool.groups
    assert num_runs(one_block(placement)) == block
    assert num_runs(one_unit(placement)) == head
