import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pools import STRIDE_ORDERS, lazy_pool, memory_of, pool

from blockstride.kernels.cache import reference
from blockstride.kernels.cache.gpu import kv_cache_update
from blockstride.kernels.common.dispatch import INTERPRET

DEVICE = "cpu" if INTERPRET else "cuda"
BLOCKS, HEADS, SIZE = 5, 3, 8


def caches(head_size=16, value_size=24, dtype=torch.bfloat16, order="LBHNC", pad=0):
    """Keys and values of the second layer of a poisoned pool."""
    layer = pool((2, BLOCKS, HEADS, SIZE, head_size + value_size), dtype, order, pad)[1]
    return layer[..., :head_size], layer[..., head_size:]


def tokens(count, head_size=16, value_size=24, dtype=torch.bfloat16):
    torch.manual_seed(0)
    key, value = torch.randn(count, HEADS, head_size), torch.randn(count, HEADS, value_size)
    return key.to(DEVICE, dtype), value.to(DEVICE, dtype)


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


def updated(caches, *new, **options):
    """What both caches should hold afterwards, poison and all."""
    expected = [cache.clone() for cache in caches]
    key, value, slot_mapping = new
    reference.kv_cache_update(key, value, *expected, slot_mapping, **options)
    return expected


def same(actual, expected) -> bool:
    return torch.equal(actual.float().nan_to_num(1e9), expected.float().nan_to_num(1e9))


@pytest.mark.parametrize("order", STRIDE_ORDERS)
@pytest.mark.parametrize("pad", [0, 8], ids=["dense", "padded"])
def test_tokens_land_in_their_slots_in_every_stride_order(order, pad):
    key_cache, value_cache = caches(order=order, pad=pad)
    key, value = tokens(6)
    where = slots(9, 39, -1, 15, 16, 3)
    expected = updated((key_cache, value_cache), key, value, where)
    kv_cache_update(key, value, key_cache, value_cache, where)
    assert same(key_cache, expected[0])
    assert same(value_cache, expected[1])


def test_padding_and_everything_round_the_slots_stay_as_they_were():
    key_cache, value_cache = caches(pad=8)
    before = memory_of(key_cache).clone()
    key, value = tokens(3)
    kv_cache_update(key, value, key_cache, value_cache, slots(-1, 0, SIZE - 1))
    assert torch.equal(memory_of(key_cache), before)
    kv_cache_update(key[:0], value[:0], key_cache, value_cache, slots())
    assert torch.equal(memory_of(key_cache), before)
    kv_cache_update(key, value, key_cache, value_cache, slots(17, -1, 18))
    for block_token in (17, 18):
        for cache in (key_cache, value_cache):
            cache[block_token // SIZE, :, block_token % SIZE] = torch.nan
    assert same(memory_of(key_cache).view(torch.bfloat16), before.view(torch.bfloat16))


@pytest.mark.parametrize("head_size", [1, 20, 64])
def test_strided_tokens_and_odd_sizes_are_stored(head_size):
    key_cache, value_cache = caches(head_size, 5)
    key, value = tokens(4, 2 * head_size, 9)
    key, value = key[..., ::2], value[..., 2:7]
    where = slots(8, 20, 33, 39)
    expected = updated((key_cache, value_cache), key, value, where)
    kv_cache_update(key, value, key_cache, value_cache, where)
    assert same(key_cache, expected[0])
    assert same(value_cache, expected[1])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("scale", [None, 0.0071, 3.3])
def test_quantised_caches_hold_the_exactly_rounded_quotient(dtype, scale):
    """Among the values are all ties of the quantised grid and more than it can hold."""
    key_cache, value_cache = caches(128, 128, dtype)
    unit = scale or 1.0
    grid = torch.arange(-(128 * HEADS), 128 * HEADS).reshape(2, HEADS, 128) * 0.5 * unit
    key, value = grid.to(DEVICE), (grid * 7.7).to(DEVICE)
    value[0, 0, :2] = torch.tensor([1e30, -1e30])
    scales = {}
    if scale is not None:
        scales = dict.fromkeys(("k_scale", "v_scale"), torch.tensor(scale, device=DEVICE))
    where = slots(9, 20)
    expected = updated((key_cache, value_cache), key, value, where, **scales)
    kv_cache_update(key, value, key_cache, value_cache, where, **scales)
    assert same(key_cache, expected[0])
    assert same(value_cache, expected[1])


def test_keys_and_values_have_scales_of_their_own():
    key_cache, value_cache = caches(16, 16, torch.float8_e4m3fn)
    key, value = tokens(1, 16, 16)
    k_scale, v_scale = torch.tensor([0.5, 4.0], device=DEVICE)
    kv_cache_update(key, value, key_cache, value_cache, slots(9), k_scale=k_scale, v_scale=v_scale)
    torch.testing.assert_close(
        key_cache[1, :, 1].float() * 0.5, key[0].float(), rtol=0.07, atol=2e-3
    )
    torch.testing.assert_close(
        value_cache[1, :, 1].float() * 4, value[0].float(), rtol=0.07, atol=0.02
    )


@pytest.mark.parametrize("rotary_size", [16, 8])
def test_keys_and_queries_turn_by_their_tokens_angles(rotary_size):
    key_cache, value_cache = caches(dtype=torch.float32)
    key, value = tokens(3, dtype=torch.float32)
    query = torch.randn(3, 7, 16, device=DEVICE)
    angles = torch.randn(3, rotary_size // 2, device=DEVICE)
    where, rotary, wanted = slots(8, -1, 10), (angles.cos(), angles.sin()), query.clone()
    expected = updated((key_cache, value_cache), key, value, where, rotary=rotary, query=wanted)
    kv_cache_update(key, value, key_cache, value_cache, where, rotary=rotary, query=query)
    torch.testing.assert_close(query, wanted)
    torch.testing.assert_close(key_cache, expected[0], equal_nan=True)
    assert same(value_cache, expected[1])


def test_only_the_tails_of_fresh_blocks_are_zeroed():
    key_cache, value_cache = caches()
    # one sequence goes on in block 1, one goes on and begins block 2, two more begin 3 and fill 4
    where = slots(11, 12, 15, 16, 17, 18, 24, -1, *range(32, 40))
    key, value = tokens(where.shape[0])
    expected = updated((key_cache, value_cache), key, value, where, zero_tail=True)
    assert (expected[0][[2, 3], :, 3:] == 0).all()
    kv_cache_update(key, value, key_cache, value_cache, where, zero_tail=True)
    assert same(key_cache, expected[0])
    assert same(value_cache, expected[1])


def test_slots_times_strides_may_pass_2_to_the_31(overflow_is_an_error):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far = 65_536
    shape, strides = (far + 1, 8, 16, 256), (32_768, 256, 2_048, 1)
    cache = lazy_pool(shape, strides, torch.bfloat16)
    key, value = torch.randn(2, 1, 8, 128).bfloat16()
    kv_cache_update(key, value, cache[..., :128], cache[..., 128:], slots(far * 16 + 3))
    assert torch.equal(cache[far, :, 3, :128], key[0])
    assert torch.equal(cache[far, :, 3, 128:], value[0])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    where=st.lists(st.integers(-1, BLOCKS * SIZE - 1), max_size=8, unique=True),
    order=st.sampled_from(STRIDE_ORDERS),
    zero_tail=st.booleans(),
)
def test_any_set_of_slots_is_written_and_nothing_valid_is_lost(where, order, zero_tail):
    key_cache, value_cache = caches(4, 4, order=order)
    key, value = tokens(len(where), 4, 4)
    mapping = slots(*where)
    expected, _ = updated((key_cache, value_cache), key, value, mapping)
    kv_cache_update(key, value, key_cache, value_cache, mapping, zero_tail=zero_tail)
    was_zeroed = (key_cache == 0) & expected.isnan()
    assert zero_tail or not was_zeroed.any()
    assert same(key_cache.masked_fill(was_zeroed, torch.nan), expected)
