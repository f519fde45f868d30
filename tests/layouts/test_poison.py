"""The debugging mode that makes a stray read or write show."""

import pytest
import torch
from hypothesis import given

from blockstride.layouts import (
    KVCacheLayout,
    KVCachePool,
    full_attention,
    mamba1,
    plan_pools,
)
from blockstride.layouts.poison import (
    padding_is_intact,
    poison_blocks,
    poison_byte,
    poison_pool,
)
from tests.layouts.support import BF16, FP8, LAW, byte_addresses, pool_cases


def hybrid_pool(dtype: torch.dtype = BF16, layout: str = "BLHNC") -> KVCachePool:
    """Two layers of attention and three of Mamba whose pages are narrower: padding and a hole."""
    attention = full_attention(2, 16, dtype)
    state = mamba1(8, 4, 4, conv_dtype=BF16)
    layers = {"a": attention, "b": attention, "m": state, "n": state, "o": state}
    [pool] = plan_pools(
        layers, layout=KVCacheLayout(layout), policy="unified", num_blocks=4, block_size=8
    )
    return KVCachePool(pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16, FP8])
def test_every_unwritten_value_of_a_float_cache_is_nan(dtype):
    pool = hybrid_pool(dtype)
    poison_pool(pool)
    views = pool.bind("a", full_attention(2, 16, dtype))
    assert bool(views.key_cache.float().isnan().all())
    state = pool.bind("m", mamba1(8, 4, 4, conv_dtype=BF16))
    assert bool(state.ssm_state.isnan().all())
    assert bool(state.conv_state.isnan().all())


def test_an_int8_cache_is_filled_with_its_largest_value():
    pool = hybrid_pool(torch.int8)
    poison_pool(pool)
    views = pool.bind("b", full_attention(2, 16, torch.int8))
    assert bool((views.value_cache == 127).all())
    assert bool((pool.bind("m", mamba1(8, 4, 4, conv_dtype=BF16)).ssm_state > 3e38).all())


@LAW
@given(pool_cases())
def test_writing_all_fields_of_real_blocks_leaves_padding_intact(case):
    pool = KVCachePool(case.plan())
    poison_pool(pool)
    assert padding_is_intact(pool)
    for name, (placement, _) in pool.layout.slots.items():
        for placed in placement.fields:
            slot = pool.layout.slots[name][1]
            placement.byte_view(pool.storage, placed, slot)[placement.kernel_blocks :] = 3
    assert padding_is_intact(pool)


@LAW
@given(pool_cases())
def test_one_stray_byte_outside_the_fields_is_noticed(case):
    pool = KVCachePool(case.plan())
    poison_pool(pool)
    fields = set()
    for placement in pool.layout.groups:
        for slot in range(len(placement.group.layer_names)):
            for placed in placement.fields:
                view = placement.byte_view(pool.storage, placed, slot)[placement.kernel_blocks :]
                fields |= set(byte_addresses(view, pool.storage).tolist())
    strays = sorted(set(range(pool.layout.nbytes)) - fields)
    for stray in {strays[0], strays[len(strays) // 2], strays[-1]}:
        before = pool.storage[stray].item()
        pool.storage[stray] = 5
        assert not padding_is_intact(pool)
        pool.storage[stray] = before
    assert padding_is_intact(pool)


def test_a_write_to_the_null_block_is_noticed():
    pool = hybrid_pool()
    poison_pool(pool)
    pool.bind("a", full_attention(2, 16, BF16)).key_cache[0, 0, 0, 0] = 1
    assert not padding_is_intact(pool)


@LAW
@given(pool_cases())
def test_freed_blocks_are_poisoned_and_no_others(case):
    pool = KVCachePool(case.plan())
    pool.storage.fill_(7)
    freed = {pool.layout.num_blocks - 1}
    poison_blocks(pool, [*freed, *freed])
    byte = poison_byte(pool)
    written = pool.storage == byte
    for placement in pool.layout.groups:
        for slot in range(len(placement.group.layer_names)):
            for placed in placement.fields:
                view = placement.byte_view(pool.storage, placed, slot)
                for row in range(view.shape[0]):
                    at = byte_addresses(view[row], pool.storage)
                    if row // placement.kernel_blocks in freed:
                        assert bool((pool.storage[at] == byte).all())
                        written[at] = False
                    else:
                        assert bool((pool.storage[at] == 7).all())
    assert not written.any()


def test_poisoning_no_blocks_changes_nothing():
    pool = hybrid_pool()
    poison_blocks(pool, [])
    assert not pool.storage.any()
