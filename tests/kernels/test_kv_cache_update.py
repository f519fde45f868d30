from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.kernels import PAD_SLOT_ID, kv_cache_update
from blockstride.kernels.cache import reference

NAN = float("nan")
F32, BF16, F16, F8, I8 = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int8,
)
BLOCK_SIZE = 4
# out of order, at both ends of blocks, with padding and the null block among them
SLOTS = (11, 4, PAD_SLOT_ID, 23, 8, 2, 15)

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "no-token": {"slots": ()},
    "one-token": {"slots": (4,)},
    "only-padding": {"slots": (PAD_SLOT_ID, 0, 3)},
    "head_size-80": {"head_size": 80},
    "value_size-3": {"value_size": 3},
    "bf16": {"dtype": BF16, "cache_dtype": BF16},
    "fp16": {"dtype": F16, "cache_dtype": F16},
    "fp32-to-bf16": {"cache_dtype": BF16},
    "bf16-to-fp32": {"dtype": BF16},
    "fp8": {"cache_dtype": F8},
    "fp8-scaled": {"cache_dtype": F8, "scaled": True},
    "int8-scaled": {"cache_dtype": I8, "scaled": True},
    "bf16-to-int8-scaled": {"dtype": BF16, "cache_dtype": I8, "scaled": True},
}


def make(
    slots=SLOTS, num_kv_heads=2, head_size=8, value_size=8, dtype=F32, cache_dtype=F32, scaled=False
):
    """New tokens, and two caches of arbitrary bytes in which they go."""
    caches = [
        torch.randn(6, num_kv_heads, BLOCK_SIZE, size).mul(9).to(cache_dtype)
        for size in (head_size, value_size)
    ]
    inputs: dict[str, Any] = {
        "key": (torch.randn(len(slots), num_kv_heads, head_size) * 100).to(dtype),
        "value": (torch.randn(len(slots), num_kv_heads, value_size) * 100).to(dtype),
        "slot_mapping": torch.tensor(slots, dtype=torch.int64),
    }
    scales: dict[str, Any] = {}
    if scaled:
        scales = {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor(1.3)}
    return inputs, caches, scales


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_each_token_lands_in_its_slot_and_nowhere_else(row, pool_of, assert_same_bits):
    inputs, caches, scales = make(**row)
    pools, expected = ([pool_of(cache, (0, 2, 1, 3)) for cache in caches] for _ in range(2))
    for update, (keys, values) in ((kv_cache_update, pools), (reference.kv_cache_update, expected)):
        update(**inputs, key_cache=keys.view, value_cache=values.view, **scales)
    for pool, wanted in zip(pools, expected, strict=True):
        assert_same_bits(pool.memory, wanted.memory)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
@pytest.mark.parametrize("cache_dtype", [F32, BF16, I8], ids=str)
def test_every_memory_order_holds_the_same(order, cache_dtype, pool_of, assert_same_bits):
    inputs, (keys, values), _ = make(cache_dtype=cache_dtype)
    placed = pool_of(keys, order), pool_of(values, order)
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    kv_cache_update(**inputs, key_cache=placed[0].view, value_cache=placed[1].view)
    assert_same_bits(placed[0].view, keys)
    assert_same_bits(placed[1].view, values)


@pytest.mark.parametrize("update", [kv_cache_update, reference.kv_cache_update])
@pytest.mark.parametrize("cache_dtype", [F8, I8], ids=str)
def test_quantised_caches_round_to_even_and_saturate(update, cache_dtype):
    limit = 448.0 if cache_dtype == F8 else 127.0
    numbers = torch.tensor([0.5, 1.5, 2.5, -0.5, limit, limit + 1, 1e6, -1e6])
    # halves are exact in fp8, so its ties lie between 16 and 18
    ties = torch.tensor([17.0, 19.0, -17.0, 0, 464.0, 480.0, torch.inf, -torch.inf])
    new = torch.cat([numbers, ties]).view(1, 1, 16)
    cache = torch.zeros(2, 1, 1, 16).to(cache_dtype)
    update(new, new, cache, cache.clone(), torch.tensor([1]))
    expected = {
        F8: [0.5, 1.5, 2.5, -0.5, 448, 448, 448, -448, 16, 20, -16, 0, 448, 448, 448, -448],
        I8: [0, 2, 2, 0, 127, 127, 127, -128, 17, 19, -17, 0, 127, 127, 127, -128],
    }[cache_dtype]
    assert cache[1].flatten().float().tolist() == expected


def test_keys_may_be_slices_of_a_wider_tensor(assert_same_bits):
    inputs, (keys, values), _ = make()
    qkv = torch.full((7, 6, 11), NAN)
    qkv[:, 2:4, 1:9], qkv[:, 4:6, 1:9] = inputs["key"], inputs["value"]
    sliced: dict[str, Any] = inputs | {"key": qkv[:, 2:4, 1:9], "value": qkv[:, 4:6, 1:9]}
    other = keys.clone(), values.clone()
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    kv_cache_update(**sliced, key_cache=other[0], value_cache=other[1])
    assert_same_bits(other[0], keys)
    assert_same_bits(other[1], values)


def test_keys_and_values_may_be_slices_of_one_cache(assert_same_bits):
    inputs, (keys, values), _ = make()
    packed = torch.cat([keys, values], -1)
    kv_cache_update(**inputs, key_cache=packed[..., :8], value_cache=packed[..., 8:])
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    assert_same_bits(packed, torch.cat([keys, values], -1))


def test_a_repeated_slot_holds_one_of_its_tokens():
    inputs, (keys, values), _ = make(slots=(9, 9, 9))
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    held = keys[2, :, 1]
    assert any(torch.equal(held, inputs["key"][token]) for token in range(3))


@given(slots=st.lists(st.integers(-1, 23), max_size=20, unique=True))
def test_writing_in_any_order_is_the_same(slots):
    inputs, (keys, values), _ = make(slots=slots)
    other = keys.clone(), values.clone()
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    backwards: dict[str, Any] = {name: new.flip(0) for name, new in inputs.items()}
    kv_cache_update(**backwards, key_cache=other[0], value_cache=other[1])
    assert torch.equal(other[0], keys)
    assert torch.equal(other[1], values)


@pytest.mark.parametrize(
    ("half", "head_size"), [(4, 8), (2, 8), (1, 8), (70, 140), (65, 200)], ids=str
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_keys_and_queries_turn_by_the_angles_of_their_tokens(
    half, head_size, dtype, assert_same_bits
):
    inputs, (keys, values), _ = make(head_size=head_size, dtype=dtype, cache_dtype=dtype)
    angles, query = torch.randn(7, half), torch.randn(7, 5, head_size).to(dtype)
    kept, rotary = inputs["key"].clone(), (angles.cos(), angles.sin())
    expected = [tensor.clone() for tensor in (keys, values, query)]
    for update, (k, v, q) in (
        (kv_cache_update, (keys, values, query)),
        (reference.kv_cache_update, expected),
    ):
        update(**inputs, key_cache=k, value_cache=v, rotary=rotary, query=q)
    rtol, atol = (1e-2, 1e-2) if dtype is BF16 else (1e-5, 1e-5)
    torch.testing.assert_close(query, expected[2], rtol=rtol, atol=atol)
    torch.testing.assert_close(keys, expected[0], rtol=rtol, atol=atol)
    assert_same_bits(values, expected[1])
    assert_same_bits(inputs["key"], kept)


@pytest.mark.parametrize("update", [kv_cache_update, reference.kv_cache_update])
@pytest.mark.parametrize("cache_dtype", [F32, BF16, F8, I8], ids=str)
def test_only_the_tails_of_blocks_that_the_call_began_are_zeroed(
    update, cache_dtype, assert_same_bits
):
    # goes on in block 5; goes on in block 1 and begins 2; begins and fills block 3, and begins 4
    slots = (21, 22, 5, 6, 7, 8, 9, PAD_SLOT_ID, 12, 13, 14, 15, 16)
    inputs, (keys, values), _ = make(slots=slots, cache_dtype=cache_dtype)
    expected = keys.clone(), values.clone()
    kv_cache_update(**inputs, key_cache=expected[0], value_cache=expected[1])
    for cache in expected:
        cache[2, :, 2:] = 0
        cache[4, :, 1:] = 0
    update(**inputs, key_cache=keys, value_cache=values, zero_tail=True)
    assert_same_bits(keys, expected[0])
    assert_same_bits(values, expected[1])


def test_slots_beyond_2_to_the_31_elements_are_reached(lazy_memory, assert_same_bits):
    # block id * stride wraps at 32 bits, silently or with a crash
    stride = 2**29 + 16
    inputs, (keys, values), _ = make(slots=(17, 22))
    memory = lazy_memory(5 * stride + 256, F32)
    far = memory.as_strided((6, 2, 4, 16), (stride, 64, 16, 1))
    kv_cache_update(**inputs, key_cache=far[..., :8], value_cache=far[..., 8:])
    kv_cache_update(**inputs, key_cache=keys, value_cache=values)
    assert_same_bits(far[4, :, 1, :8], keys[4, :, 1])
    assert_same_bits(far[5, :, 2, 8:], values[5, :, 2])


BAD = {
    "key": (torch.zeros(7, 2, 8, dtype=torch.float64), TypeError),
    "value": (torch.zeros(6, 2, 8), ValueError),
    "key_cache": (torch.zeros(6, 2, 4, 9), ValueError),
    "value_cache": (torch.zeros(6, 3, 4, 8), ValueError),
    "slot_mapping": (torch.zeros(7, dtype=torch.int32), TypeError),
    "k_scale": (torch.tensor(1.0), ValueError),
    "v_scale": (torch.tensor(1.0), ValueError),
    "query": (torch.zeros(7, 5, 8), ValueError),
    "rotary": ((torch.zeros(7, 5), torch.zeros(7, 5)), ValueError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs, (keys, values), _ = make()
    arguments: dict[str, Any] = inputs | {"key_cache": keys, "value_cache": values}
    with pytest.raises(error, match=f"^{name}: expected"):
        kv_cache_update(**(arguments | {name: value}))


@pytest.mark.parametrize("cache_dtype", [F8, I8], ids=str)
def test_a_scale_of_zero_stores_zeros(cache_dtype):
    # what is stored is read as 0 in any case, and 0 / 0 would be NaN
    inputs, (keys, values), _ = make(slots=(5,), cache_dtype=cache_dtype)
    inputs["key"][0, 0, 0] = 0
    kv_cache_update(**inputs, key_cache=keys, value_cache=values, k_scale=torch.tensor(0.0))
    assert (keys[1, :, 1].float() == 0).all()
