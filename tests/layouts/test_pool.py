"""Pools: one allocation, its blocks as bytes, and what can't be laid out."""

import pytest
import torch
from hypothesis import given

from blockstride.layouts import (
    NULL_BLOCK,
    KVCacheLayout,
    KVCachePool,
    full_attention,
    latent_attention,
    mamba1,
    plan_pools,
)
from tests.layouts.support import (
    ALL_LAYOUTS,
    BF16,
    LAW,
    SPECS,
    byte_addresses,
    can_hold,
    pool_cases,
)

HYBRID = {"a": SPECS["gqa-bf16"], "m": SPECS["mamba-1-DS"], "n": SPECS["mamba-1-DS"]}


def plan(layers=HYBRID, **changes):
    parts = {"layout": KVCacheLayout.LBHNC, "policy": "unified", "num_blocks": 4, "block_size": 4}
    return plan_pools(layers, **{**parts, **changes})


def test_unified_makes_one_pool_and_split_one_a_group():
    [pool] = plan(policy="unified")
    assert [placement.group.layer_names for placement in pool.groups] == [("a",), ("m",), ("n",)]
    assert [len(pool.groups) for pool in plan(policy="split")] == [1, 1]


def test_split_pools_have_pages_and_blocks_of_their_own():
    attention, state = plan(policy="split", num_blocks=[3, 5])
    assert attention.page_bytes == SPECS["gqa-bf16"].page(4).nbytes
    assert state.page_bytes == SPECS["mamba-1-DS"].page(1).nbytes
    assert (attention.num_blocks, state.num_blocks) == (3, 5)
    assert state.num_slots == 2


def test_unified_pads_the_smaller_page():
    [pool] = plan()
    pages = [placement.page.nbytes * placement.kernel_blocks for placement in pool.groups]
    assert pool.page_bytes == max(pages)
    assert min(pages) < max(pages)
    assert pool.nbytes == pool.page_bytes * pool.num_slots * pool.num_blocks


def test_a_rank_whose_state_outgrows_its_tokens_pads_its_tokens():
    # key heads of attention are dealt to 8 ranks, while all of them hold the one group of B and C
    layers = {"a": SPECS["mha-bf16"], "m": SPECS["mamba-2-DS"]}
    parts = {name: spec.tp_shard(3, 8) for name, spec in layers.items()}
    [pool] = plan(parts, block_size=16)
    attention, state = pool.groups
    assert attention.page.nbytes < state.page.nbytes == pool.page_bytes


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
def test_an_order_that_cannot_hold_blocks_of_two_kinds_is_refused(layout):
    if can_hold(layout.order, ["gqa-bf16", "mamba-1-DS"], "unified"):
        assert len(plan(layout=layout)) == 1
    else:
        with pytest.raises(ValueError, match=f"expected .*, got .*{layout}|axis .: expected"):
            plan(layout=layout)


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
def test_attention_alone_takes_any_order(layout):
    layers = {"full": SPECS["gqa-bf16"], "window": SPECS["window-bf16"]}
    assert plan({"full": layers["full"]}, layout=layout)[0].num_blocks == 4
    assert len(plan(layers, layout=layout, policy="split")) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_block_size": 3}, "kernel_block_size: expected a divisor of 4, got 3"),
        ({"kernel_block_size": 0}, "kernel_block_size: expected a divisor of 4, got 0"),
        ({"num_blocks": [4, 4]}, "num_blocks: expected 1 counts, one a pool"),
        ({"num_blocks": [4], "policy": "split"}, "num_blocks: expected 2 counts, one a pool"),
        ({"num_blocks": 0}, "num_blocks: expected at least 1, got 0"),
        ({"block_size": 0}, "block_size: expected a positive number of tokens, got 0"),
        ({"policy": "both"}, r"policy: expected one of \('unified', 'split'\), got 'both'"),
        ({"layers": {}}, "layers: expected at least one layer"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_an_unknown_layer_is_refused_by_name():
    pool = KVCachePool(plan()[0])
    with pytest.raises(ValueError, match=r"layer_name: expected one of \['a', 'm', 'n'\], got 'x'"):
        pool.raw("x")


def test_every_layer_finds_its_slot():
    [pool] = plan({**HYBRID, "b": SPECS["gqa-bf16"]})
    assert {name: slot for name, (_, slot) in pool.slots.items()} == {
        "a": 0,
        "b": 1,
        "m": 0,
        "n": 1,
    }


def test_a_fresh_pool_is_zero_and_starts_with_the_null_block():
    pool = KVCachePool(plan()[0])
    assert NULL_BLOCK == 0
    assert pool.storage.shape == (pool.layout.nbytes,)
    assert not pool.storage.any()


@LAW
@given(pool_cases())
def test_block_rows_are_all_that_a_block_owns(case):
    pool = KVCachePool(case.plan())
    layout = pool.layout
    if not (layout.layout.is_block_outermost or layout.layout.is_block_compact):
        with pytest.raises(ValueError, match="layout: expected an order that keeps a page or a bl"):
            pool.block_rows()
        return
    views = pool.block_rows()
    assert len(views) == (1 if layout.layout.is_block_outermost else layout.num_slots)
    for block in range(layout.num_blocks):
        for view in views:
            assert view.shape[0] == layout.num_blocks
            view[block] += 1
    # together they are the whole allocation, once
    assert bool((pool.storage == 1).all())
    for block in range(layout.num_blocks):
        pool.storage.zero_()
        for view in views:
            view[block] = 1
        assert int(pool.storage.sum()) == layout.block_bytes
        for name, (placement, _) in layout.slots.items():
            rows = pool.raw(name).unflatten(0, (layout.num_blocks, placement.kernel_blocks))
            for other in range(layout.num_blocks):
                marked = pool.storage[byte_addresses(rows[other], pool.storage)]
                assert bool((marked == int(other == block)).all())


def test_a_block_is_moved_by_its_bytes():
    [plan_] = plan(layout=KVCacheLayout.BHLNC)
    pool = KVCachePool(plan_)
    key_cache = SPECS["gqa-bf16"].bind_kv_cache(pool.raw("a")).key_cache
    key_cache[2] = torch.randn_like(key_cache[2])
    [rows] = pool.block_rows()
    rows[3] = rows[2]
    assert torch.equal(key_cache[3], key_cache[2])


def test_kernel_blocks_cut_a_padded_block_evenly():
    # vllm-project/vllm#57993: a padded page could not be split for kernels
    layers = {"a": full_attention(2, 8, BF16), "m": mamba1(64, 16, 4, conv_dtype=BF16)}
    for layout in (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC, KVCacheLayout.BHLNC):
        [pool] = plan(layers, layout=layout, block_size=32, kernel_block_size=8)
        assert pool.page_bytes > layers["a"].page(32).nbytes
        raw = KVCachePool(pool).raw("a")
        assert raw.shape == (4 * 4, 2, 8, 16)
        per_kernel_block = pool.page_bytes // 4
        slots = pool.num_slots if layout.is_block_outermost else 1
        assert raw.stride(0) * 2 == per_kernel_block * slots


def test_slots_mean_the_same_token_in_blocks_and_kernel_blocks():
    # slot = block * block_size + offset, whichever block size counts
    [pool] = plan({"a": SPECS["gqa-bf16"]}, block_size=12, kernel_block_size=4)
    raw = KVCachePool(pool).raw("a")
    slots = torch.arange(4 * 12)
    raw[slots // 4, 0, slots % 4, 0] = slots.to(BF16)
    for block in range(4):
        of_block = raw[3 * block : 3 * block + 3, 0, :, 0].flatten()
        assert of_block.tolist() == list(range(12 * block, 12 * block + 12))


def test_latent_and_plain_attention_share_a_pool():
    layers = {"mla": latent_attention(24, 8, BF16), "mha": full_attention(4, 8, BF16)}
    [pool] = plan(layers, layout=KVCacheLayout.BLNHC)
    assert {name: KVCachePool(pool).raw(name).shape[1] for name in layers} == {"mla": 1, "mha": 4}
