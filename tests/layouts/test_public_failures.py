"""Failures that users of other engines reported, each in the smallest condition that shows it."""

from collections.abc import Mapping

import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    KVCachePool,
    PoolLayout,
    choose_block_size,
    full_attention,
    mamba1,
    plan_pools,
    sequence_bytes,
    short_conv,
    sliding_window_attention,
    tokens_that_fit,
)
from blockstride.layouts.accounting import account, sequence_blocks
from tests.layouts.support import BF16, FP8, byte_addresses


def plan(layers: Mapping[str, CacheSpec], num_blocks=4, block_size=16, **changes) -> PoolLayout:
    parts = {"layout": KVCacheLayout.LBHNC, "policy": "unified", **changes}
    return plan_pools(layers, num_blocks=num_blocks, block_size=block_size, **parts)[0]


def test_two_backends_never_see_one_buffer_in_two_ways():
    # vllm-project/vllm#41657: one buffer, seen as (2, 8, ...) and as (8, 2, ...)
    planes = full_attention(2, 8, BF16, packed=False)
    pool = KVCachePool(plan({"draft": planes, "target": planes}, 8))
    with pytest.raises(ValueError, match="draft: expected the spec it was laid out with"):
        pool.bind("draft", full_attention(2, 8, BF16))
    pool.bind("target", planes).key_cache[1] = 1
    pool.bind("target", planes).value_cache[1] = 1
    written = pool.storage.view(2, 8, -1).count_nonzero(dim=-1)
    assert written.tolist() == [[0] * 8, [0, written[1, 1], *[0] * 6]]


def test_padded_pages_keep_int8_values_in_their_own_block():
    # vllm-project/vllm#49716: strides taken from the shape; pages of 133,120 and 264,192 bytes
    layers = {
        "a": full_attention(2, 64, torch.int8),
        "m": short_conv(33024, 3, conv_dtype=torch.float32),
    }
    pool = KVCachePool(plan(layers, block_size=520))
    assert layers["a"].page(520).nbytes == 133120
    assert layers["m"].page(1).nbytes == 264192
    views = pool.bind("a", layers["a"])
    assert views.key_cache.stride(0) == views.value_cache.stride(0) == pool.layout.page_bytes
    for block in range(4):
        views.key_cache[block] = block
        views.value_cache[block] = block
    [rows] = pool.block_rows()
    for block in range(4):
        assert rows[block, :133120].unique().tolist() == [block]
        assert not rows[block, 133120:].any()


def test_regions_of_one_address_and_two_lengths_stay_two_regions():
    # vllm-project/vllm#57661: regions told apart by their address alone; 32,768 and 19,008 bytes
    layers = {"a": full_attention(8, 64, BF16), "m": short_conv(2376, 3, conv_dtype=torch.float32)}
    pool = KVCachePool(plan(layers))
    ends = {}
    for name in layers:
        own = byte_addresses(pool.raw(name)[:1], pool.storage)
        ends[name] = (int(own.min()), int(own.max()) + 1)
    assert ends == {"a": (0, 32768), "m": (0, 19008)}
    [rows] = pool.block_rows()
    assert rows.shape == (4, 32768)
    for name in layers:
        pool.raw(name)[2] = 1
        rows[3] = rows[2]
        assert torch.equal(pool.raw(name)[3], pool.raw(name)[2])


def test_a_state_page_half_as_large_is_padded():
    # vllm-project/vllm#43626: a page of tokens twice the state's, which no block size alters
    layers = {"a": full_attention(2, 8, BF16), "m": short_conv(128, 3, conv_dtype=BF16)}
    block_size = choose_block_size(layers, "unified")
    pool = plan(layers, block_size=block_size)
    assert block_size == 16
    assert pool.page_bytes == 2 * layers["m"].page(1).nbytes == layers["a"].page(16).nbytes
    assert [part.used_bytes / part.block_bytes for part in account(pool)] == [1, 0.5]


def inflated() -> Mapping[str, CacheSpec]:
    attention = full_attention(1, 16, BF16)
    state = mamba1(7136, 16, 4, conv_dtype=BF16)
    return {f"a{i}": attention for i in range(4)} | {f"m{i}": state for i in range(88)}


def test_capacity_counts_the_whole_blocks_that_a_short_prompt_takes():
    # vllm-project/vllm#54458: blocks of 7,808 tokens; a prompt of 12 takes 23 of 70, a third
    layers = inflated()
    block_size = choose_block_size(layers, "unified")
    assert block_size == 7808
    pool = plan(layers, 71, block_size)
    assert sequence_blocks(pool, 12) == 23
    assert tokens_that_fit([pool], 3) >= 12
    assert tokens_that_fit([pool], 4) == 0


def test_split_pools_do_not_inflate_a_short_prompt():
    layers = inflated()
    layout = KVCacheLayout.LBHNC
    split = plan_pools(layers, layout=layout, policy="split", num_blocks=4, block_size=16)
    states = 88 * layers["m0"].page(1).nbytes
    assert sequence_bytes(split, 12) == states + 4 * 16 * 64
    assert sequence_bytes([plan(layers, 4, 7808)], 12) > states + 4 * 7808 * 64


@pytest.mark.parametrize(("policy", "gain"), [("unified", 1.0), ("split", 2.0)])
def test_a_narrower_attention_cache_gains_what_accounting_says(policy, gain):
    # vllm-project/vllm#55196: with fp8 attention the state still sets the bytes of a block
    costs = []
    for dtype in (BF16, FP8):
        layers = {"a": full_attention(8, 64, dtype), "m": mamba1(1024, 16, 4, conv_dtype=BF16)}
        block_size = choose_block_size(layers, policy, 1)
        pool = plan(layers, policy=policy, block_size=max(32, block_size))
        costs.append(sequence_bytes([pool], 20))
    assert costs[0] / costs[1] == pytest.approx(gain, rel=0.05)


def test_kernel_blocks_are_counted_at_the_ratio_of_the_pool():
    # ovg-project/kvcached#330: 2,699 blocks of 528 tokens are 89,067 kernel blocks of 16, not 2,699
    spec = full_attention(1, 8, FP8)
    pool = KVCachePool(plan({"a": spec}, 2699, 528, kernel_block_size=16))
    views = pool.bind("a", spec)
    assert views.key_cache.shape == (89067, 1, 16, 8)
    assert int(byte_addresses(views.value_cache[-1:], pool.storage).max()) == pool.layout.nbytes - 1


def test_a_block_stride_twice_the_dense_one_is_followed():
    # ROCm/aiter#3498: the address of a block computed as if its keys were dense
    spec = full_attention(4, 64, BF16)
    views = KVCachePool(plan({"a": spec})).bind("a", spec)
    dense = views.key_cache[0].numel()
    assert views.key_cache.stride(0) == 2 * dense == 8192
    keys = torch.randn(views.key_cache.shape, dtype=BF16)
    views.key_cache.copy_(keys)
    assert not views.value_cache.any()
    assert torch.equal(views.key_cache, keys)


def test_a_window_gives_its_blocks_back():
    # vllm-project/vllm#42024: windows charged as if they kept everything, which halves the capacity
    full = full_attention(2, 8, BF16)
    window = sliding_window_attention(2, 8, BF16, window=64)
    mixed = [plan({"a": full, "w": window}, 65)]
    all_full = [plan({"a": full, "w": full_attention(2, 8, FP8)}, 65)]
    assert tokens_that_fit(all_full) == 32 * 16
    assert tokens_that_fit(mixed) == (64 - 5) * 16
