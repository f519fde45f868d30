"""Where every byte lies: bounds, overlaps, tiling and memory order, for any pool of any model."""

import pytest
import torch
from hypothesis import given

from blockstride.layouts import (
    CacheGroup,
    GroupPlacement,
    KVCacheLayout,
    PoolLayout,
    StridedField,
    full_attention,
    latent_attention,
    plan_pools,
)
from blockstride.layouts.page import ALIGNMENT
from tests.layouts.support import (
    ALL_LAYOUTS,
    BF16,
    LAW,
    SPECS,
    addresses,
    byte_addresses,
    pool_cases,
)


def storage_of(pool: PoolLayout) -> torch.Tensor:
    return torch.zeros(pool.nbytes, dtype=torch.int8)


def element_bytes(placement: GroupPlacement, placed: StridedField, slot: int) -> torch.Tensor:
    """Byte of each element, from the numbers of a placement alone: [kernel blocks, *axes]."""
    grid = torch.tensor(placed.offset + slot * placed.layer_stride)
    extents = (placement.num_blocks * placement.kernel_blocks, *placed.field.shape)
    strides = (placed.block_stride, *placed.strides)
    for extent, stride in zip(extents, strides, strict=True):
        grid = grid[..., None] + torch.arange(extent) * stride
    return grid


def owners(placement: GroupPlacement, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each byte: how many elements of the group hold it, and the logical block it serves."""
    count = torch.zeros(nbytes, dtype=torch.int64)
    block = torch.full((nbytes,), -1)
    for slot in range(len(placement.group.layer_names)):
        for placed in placement.fields:
            at = element_bytes(placement, placed, slot)[..., None]
            at = at + torch.arange(placed.field.dtype.itemsize)
            ids = torch.arange(at.shape[0]) // placement.kernel_blocks
            count.index_add_(0, at.flatten(), torch.ones(at.numel(), dtype=torch.int64))
            block[at.flatten(1)] = ids[:, None].expand(-1, at[0].numel())
    return count, block


@LAW
@given(pool_cases())
def test_no_element_lies_outside_the_allocation(case):
    pool = case.plan()
    for placement in pool.groups:
        for slot in range(len(placement.group.layer_names)):
            for placed in placement.fields:
                at = element_bytes(placement, placed, slot)
                assert int(at.min()) >= 0
                assert int(at.max()) + placed.field.dtype.itemsize <= pool.nbytes


@LAW
@given(pool_cases())
def test_no_two_elements_of_a_group_share_a_byte(case):
    pool = case.plan()
    for placement in pool.groups:
        count, _ = owners(placement, pool.nbytes)
        assert int(count.max()) == 1


@LAW
@given(pool_cases())
def test_groups_never_reach_into_blocks_of_each_other(case):
    pool = case.plan()
    owner = torch.full((pool.nbytes,), -1)
    for placement in pool.groups:
        _, block = owners(placement, pool.nbytes)
        both = (block >= 0) & (owner >= 0)
        assert torch.equal(block[both], owner[both])
        owner = torch.where(block >= 0, block, owner)


@LAW
@given(pool_cases())
def test_fields_and_padding_tile_the_allocation(case):
    pool = case.plan()
    for placement in pool.groups:
        cells = placement.page.num_cells(pool.layout.inner) * placement.kernel_blocks
        cell_bytes = pool.page_bytes // cells
        rows = pool.num_blocks * placement.kernel_blocks
        owner = torch.full((pool.nbytes // cell_bytes,), -1)
        for slot in range(len(placement.group.layer_names)):
            for placed in placement.fields:
                at = element_bytes(placement, placed, slot).flatten(1)
                last = at + placed.field.dtype.itemsize - 1
                assert torch.equal(at // cell_bytes, last // cell_bytes)
                row = (slot * rows + torch.arange(rows))[:, None].expand_as(at)
                held = owner[at // cell_bytes]
                assert bool(((held == -1) | (held == row)).all())
                owner[at // cell_bytes] = row
        counts = torch.bincount(owner[owner >= 0])
        assert counts.tolist() == [cells // placement.kernel_blocks] * len(counts)
        assert len(counts) == rows * len(placement.group.layer_names)
        assert pool.nbytes == cell_bytes * cells * pool.num_blocks * pool.num_slots


@LAW
@given(pool_cases())
def test_every_cell_and_segment_starts_aligned(case):
    pool = case.plan()
    for placement in pool.groups:
        for segment in placement.page.segments:
            placed = placement.segment(segment.name)
            outside = [
                stride
                for axis, stride in zip(placed.field.axes, placed.strides, strict=True)
                if axis.logical in pool.layout.outer
            ]
            starts = [placed.offset, placed.layer_stride, placed.block_stride, *outside]
            assert [start % ALIGNMENT for start in starts] == [0] * len(starts)


@LAW
@given(pool_cases())
def test_views_show_the_bytes_that_the_placement_names(case):
    pool = case.plan()
    storage = storage_of(pool)
    for placement in pool.groups:
        slot = len(placement.group.layer_names) - 1
        for placed in placement.fields:
            at = element_bytes(placement, placed, slot)
            assert torch.equal(addresses(placement.view(storage, placed, slot), storage), at)
            flat = addresses(placement.byte_view(storage, placed, slot), storage)
            assert torch.equal(flat, at[..., None] + torch.arange(placed.field.dtype.itemsize))


@LAW
@given(pool_cases())
def test_a_view_never_leaves_a_storage_that_is_part_of_a_larger_one(case):
    pool = case.plan()
    whole = torch.zeros(3 * pool.nbytes, dtype=torch.int8)
    storage = whole[pool.nbytes : 2 * pool.nbytes]
    for placement in pool.groups:
        placement.raw(storage, 0).fill_(1)
        for placed in placement.fields:
            placement.view(storage, placed, 0).fill_(1)
            placement.byte_view(storage, placed, 0).fill_(1)
    assert not whole[: pool.nbytes].any()
    assert not whole[2 * pool.nbytes :].any()


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["gqa-bf16", "mla-bf16"])
def test_memory_order_is_that_of_the_layout(kind, layout):
    layers = {f"{i}": SPECS[kind] for i in range(3)}
    [pool] = plan_pools(
        layers, layout=layout, policy="unified", num_blocks=3, block_size=4, kernel_block_size=2
    )
    storage, [placement] = storage_of(pool), pool.groups
    # raw is [B, H, N, C]
    logical = torch.stack([addresses(placement.raw(storage, i), storage) for i in range(3)])
    in_memory = layout.to_memory(logical).flatten()
    assert bool((in_memory.diff() > 0).all())


@pytest.mark.parametrize("layout", [x for x in ALL_LAYOUTS if x.is_content_innermost], ids=str)
def test_a_page_without_padding_is_a_dense_array(layout):
    heads, tokens, size, slots, blocks = 2, 4, 8, 3, 5
    [pool] = plan_pools(
        {f"{i}": full_attention(heads, size, BF16) for i in range(slots)},
        layout=layout,
        policy="split",
        num_blocks=blocks,
        block_size=tokens,
    )
    shape = (slots, blocks, heads, tokens, 2 * size)
    dense = layout.strides(shape)
    storage = storage_of(pool)
    raw = pool.groups[0].raw(storage, 1).contiguous()
    assert pool.nbytes == 2 * torch.Size(shape).numel()
    assert raw.shape == shape[1:]
    assert pool.groups[0].raw(storage, 1).stride() == dense[1:]
    assert pool.groups[0].raw(storage, 1).storage_offset() == dense[0]


@LAW
@given(pool_cases())
def test_kernel_blocks_of_a_block_lie_in_that_block(case):
    pool = case.plan()
    if not (pool.layout.is_block_outermost or pool.layout.is_block_compact):
        return
    storage = storage_of(pool)
    for placement in pool.groups:
        for slot in range(len(placement.group.layer_names)):
            raw = placement.raw(storage, slot)
            for block in range(pool.num_blocks):
                first = block * placement.kernel_blocks
                at = byte_addresses(raw[first : first + placement.kernel_blocks], storage)
                if pool.layout.is_block_outermost:
                    region = at // pool.block_bytes
                    assert region.unique().tolist() == [block]
                else:
                    region = at // pool.page_bytes
                    by_layer = slot * pool.num_blocks + block
                    by_block = block * pool.num_slots + slot
                    assert region.unique().tolist() == [
                        by_layer if pool.layout.order[0] == "L" else by_block
                    ]


def placement(**changes) -> GroupPlacement:
    group = CacheGroup(full_attention(2, 8, BF16), ("a", "b"))
    parts = {
        "group": group,
        "layout": KVCacheLayout.LBHNC,
        "num_slots": 2,
        "num_blocks": 3,
        "block_size": 4,
        "kernel_blocks": 2,
        "page_bytes": 512,
    }
    return GroupPlacement(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_bytes": 240}, "page_bytes: expected a multiple of 32, at least 256, got 240"),
        ({"page_bytes": 272}, "page_bytes: expected a multiple of 32, at least 256, got 272"),
        ({"num_blocks": 0}, "num_blocks: expected at least 1, got 0"),
        ({"num_slots": 1}, "num_slots: expected at least 2, got 1"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        placement(**changes)


def test_a_storage_of_another_size_is_refused():
    parts = placement()
    for nbytes in (parts.num_blocks * 1024 - 16, parts.num_blocks * 1024 + 16):
        storage = torch.zeros(nbytes, dtype=torch.int8)
        for view in (
            lambda storage: parts.raw(storage, 0),
            lambda storage: parts.view(storage, parts.fields[0], 0),
            lambda storage: parts.byte_view(storage, parts.fields[0], 0),
        ):
            with pytest.raises(ValueError, match=f"storage: expected 3072 bytes, got {nbytes}"):
                view(storage)


def test_a_storage_of_another_dtype_is_refused():
    parts = placement()
    with pytest.raises(TypeError, match=r"storage: expected torch.int8, got torch.uint8"):
        parts.view(torch.zeros(3072, dtype=torch.uint8), parts.fields[0], 0)


def test_a_slot_that_is_not_there_is_refused():
    parts, storage = placement(), torch.zeros(3072, dtype=torch.int8)
    with pytest.raises(ValueError, match="slot: expected 0 to 1, got 2"):
        parts.raw(storage, 2)


def test_latent_attention_has_one_head_slot():
    [pool] = plan_pools(
        {"mla": latent_attention(512, 64, BF16)},
        layout=KVCacheLayout.LBHNC,
        policy="split",
        num_blocks=2,
        block_size=16,
    )
    assert pool.groups[0].raw(storage_of(pool), 0).shape == (2, 1, 16, 576)
