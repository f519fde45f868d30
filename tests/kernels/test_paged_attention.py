from itertools import accumulate, permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from blockstride.kernels import paged_attention
from blockstride.kernels.attention import reference
from tests.kernels.gpu.support.budget import cast, exact_and_plain

NAN, INF = float("nan"), float("inf")
F32, BF16, F16, F8, I8 = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int8,
)

# (new tokens, tokens in all) of each sequence: prompt, chunk, decode, nothing, short chunk
MIXED = ((20, 20), (5, 23), (1, 40), (0, 3), (2, 9))

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "decode": {"seqs": ((1, 1), (1, 16), (1, 17), (1, 70))},
    "prompts": {"seqs": ((33, 33), (1, 1), (0, 0), (40, 40))},
    "no-sequence": {"seqs": ()},
    "long-context": {"seqs": ((1, 1100), (30, 600))},
    "heads-per-kv-head-1": {"num_heads": 2},
    "one-kv-head": {"num_kv_heads": 1},
    "heads-per-kv-head-20": {"num_heads": 20, "num_kv_heads": 1},
    "head_size-16": {"head_size": 16, "value_size": 16},
    "head_size-80": {"head_size": 80, "value_size": 80},
    "head_size-128": {"head_size": 128, "value_size": 128},
    "value_size-40": {"value_size": 40},
    "block_size-1": {"block_size": 1},
    "block_size-3": {"block_size": 3},
    "block_size-256": {"block_size": 256},
    "window-1": {"window": 1},
    "window-4": {"window": 4},
    "window-16": {"window": 16},
    "window-70": {"window": 70, "seqs": ((30, 200), (1, 150))},
    "soft_cap": {"soft_cap": 2.0},
    "sinks": {"sinks": True},
    "bf16": {"dtype": BF16, "cache_dtype": BF16},
    "fp16": {"dtype": F16, "cache_dtype": F16},
    "bf16-cache": {"cache_dtype": BF16},
    "fp8-cache": {"cache_dtype": F8},
    "fp8-cache-scaled": {"cache_dtype": F8, "scaled": True},
    "fp8-cache-head_size-80": {"cache_dtype": F8, "head_size": 80},
    "int8-cache-scaled": {"cache_dtype": I8, "scaled": True},
    "all": {
        "window": 9,
        "soft_cap": 3.0,
        "sinks": True,
        "cache_dtype": F8,
        "scaled": True,
        "block_size": 5,
        "value_size": 24,
    },
}


def make(
    seqs=MIXED,
    num_heads=4,
    num_kv_heads=2,
    head_size=64,
    value_size=64,
    block_size=16,
    dtype=F32,
    cache_dtype=F32,
    window=None,
    soft_cap=None,
    sinks=False,
    scaled=False,
):
    """A batch over a pool in which every block that is not in use, and every tail, is poisoned."""
    blocks = [-(-total // block_size) for _, total in seqs]
    order = (torch.randperm(sum(blocks)) + 1).tolist()
    table = torch.full((len(seqs), max(blocks, default=0) + 1), -1, dtype=torch.int32)
    pool = (sum(blocks) + 2, num_kv_heads, block_size)
    caches = []
    for size in (head_size, value_size):
        values = torch.randn(*pool, size) * (50 if cache_dtype == I8 else 1)
        caches.append(
            values.round().to(cache_dtype) if cache_dtype == I8 else values.to(cache_dtype)
        )
    used = torch.zeros(pool[0], block_size, dtype=torch.bool)
    for i, (_, total) in enumerate(seqs):
        mine, order = order[: blocks[i]], order[blocks[i] :]
        table[i, : blocks[i]] = torch.tensor(mine, dtype=torch.int32)
        for position in range(total):
            used[mine[position // block_size], position % block_size] = True
    for cache in caches:
        raw = cache.view(torch.uint8) if cache.itemsize == 1 else cache
        raw.transpose(1, 2)[~used] = 0x7F if cache.itemsize == 1 else NAN
    inputs: dict[str, Any] = {
        "query": torch.randn(sum(new for new, _ in seqs), num_heads, head_size).to(dtype),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "block_table": table,
        "seq_lens": torch.tensor([total for _, total in seqs], dtype=torch.int32),
        "query_start_loc": torch.tensor(
            [0, *accumulate(new for new, _ in seqs)], dtype=torch.int32
        ),
    }
    options: dict[str, Any] = {
        "scale": head_size**-0.5,
        "window": window,
        "soft_cap": soft_cap,
        "sinks": torch.randn(num_heads) if sinks else None,
        "k_scale": torch.tensor(0.03 if cache_dtype == I8 else 1.7) if scaled else None,
        "v_scale": torch.tensor(0.02 if cache_dtype == I8 else 0.6) if scaled else None,
    }
    return inputs, options


def test_the_reference_is_torchs_own_attention_where_that_can_say_the_same():
    inputs, options = make(seqs=((20, 20),))
    out, _ = reference.paged_attention(**cast(inputs | options, torch.float64))
    blocks = inputs["block_table"][0, :2]
    keys, values = (
        torch.cat(inputs[name][blocks].double().unbind(0), 1)[:, :20]
        for name in ("key_cache", "value_cache")
    )
    query = inputs["query"].double().transpose(0, 1)
    expected = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(0, 1))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_follow_the_definition_and_nothing_else_is_read(row, assert_accurate):
    # poison in tails and in other blocks would show, and so would a lost scale
    inputs, options = make(**row)
    exact, plain = exact_and_plain(reference.paged_attention, inputs | options)
    out, lse = paged_attention(**inputs, **options, return_lse=True)
    assert out.dtype == inputs["query"].dtype
    assert lse.dtype == F32
    assert_accurate(out, exact[0], plain[0].to(out.dtype))
    assert_accurate(lse, exact[1], plain[1])
    torch.testing.assert_close(paged_attention(**inputs, **options), out, rtol=0, atol=0)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
@pytest.mark.parametrize("cache_dtype", [F32, F8], ids=str)
def test_every_memory_order_gives_the_same_bits(order, cache_dtype, pool_of, assert_same_bits):
    # a base address of block * block_size * stride_token would be wrong in all but one
    inputs, options = make(cache_dtype=cache_dtype, num_heads=2, block_size=4, head_size=80)
    out = paged_attention(**inputs, **options)
    keys, values = (pool_of(inputs[name], order) for name in ("key_cache", "value_cache"))
    before = keys.memory.clone()
    placed = inputs | {"key_cache": keys.view, "value_cache": values.view}
    assert_same_bits(paged_attention(**placed, **options), out)
    assert_same_bits(keys.memory, before)


def test_latent_attention_reads_values_from_a_slice_of_the_keys(assert_accurate):
    inputs, options = make(num_heads=6, num_kv_heads=1, head_size=96)
    inputs["value_cache"] = inputs["key_cache"][..., :64]
    exact, plain = exact_and_plain(reference.paged_attention, inputs | options)
    assert_accurate(paged_attention(**inputs, **options), exact[0], plain[0])


@pytest.mark.parametrize("seqs", [((1, 12),), ((20, 20),)], ids=["decode", "prompt"])
def test_a_window_of_w_sees_w_tokens(seqs):
    # w tokens, not w + 1, the query's own included
    inputs, options = make(seqs=seqs, num_heads=2, head_size=16, value_size=16)
    inputs["query"].zero_()
    inputs["value_cache"].copy_(torch.arange(16.0)[:, None].expand(-1, 16))
    options["window"] = 3
    out = paged_attention(**inputs, **options)[-1]
    last = (seqs[-1][1] - 1) % 16
    seen = [(last - back) % 16 for back in range(3)]
    torch.testing.assert_close(out, torch.full_like(out, sum(seen) / 3))


@pytest.mark.parametrize("window", [None, 20])
def test_tokens_of_padding_blocks_are_not_seen(window, pool_of):
    inputs, options = make(seqs=((1, 70), (33, 70)), window=window)
    inputs["block_table"][0, 1], inputs["block_table"][1, 3] = 0, -1
    exact, lse = reference.paged_attention(**cast(inputs | options, torch.float64))
    out = paged_attention(**inputs, **options, return_lse=True)
    torch.testing.assert_close(out[0], exact.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[1], lse.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("new", [1, 30], ids=["decode", "prompt"])
def test_a_query_that_sees_nothing_gives_zero(new):
    inputs, options = make(seqs=((new, 16), (new, 0)), num_heads=2)
    inputs["block_table"][0] = 0
    out, lse = paged_attention(**inputs, **options, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -INF))
    options["sinks"] = torch.tensor([0.5, -2.0])
    out, lse = paged_attention(**inputs, **options, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out))
    torch.testing.assert_close(lse, options["sinks"].expand_as(lse))


def test_a_result_of_any_strides_is_filled():
    inputs, options = make()
    expected = paged_attention(**inputs, **options)
    out = torch.full((64, 28, 4), NAN).permute(1, 2, 0)
    assert paged_attention(**inputs, **options, out=out) is out
    assert torch.equal(out, expected)
    wide = torch.full((28, 4, 80), NAN)
    assert torch.equal(paged_attention(**inputs, **options, out=wide[..., 3:67]), expected)
    assert torch.isnan(wide[..., :3]).all()
    assert torch.isnan(wide[..., 67:]).all()


def test_queries_may_be_a_slice_of_a_wider_tensor():
    inputs, options = make()
    expected = paged_attention(**inputs, **options)
    wide = torch.full((28, 12, 64), NAN)
    wide[:, 2:6] = inputs["query"]
    assert torch.equal(paged_attention(**(inputs | {"query": wide[:, 2:6]}), **options), expected)


@pytest.mark.parametrize("new", [1, 30], ids=["decode", "prompt"])
@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
def test_a_nan_that_is_seen_is_not_swallowed(new, cache):
    inputs, options = make(seqs=((new, 40),), num_heads=2)
    inputs[cache][inputs["block_table"][0, 0], 0, 3, 5] = NAN
    out = paged_attention(**inputs, **options)[-1]
    assert torch.isnan(out[0]).any()
    assert torch.isfinite(out[1]).all()


@given(seqs=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=5))
def test_a_sequence_does_not_depend_on_its_batch(seqs):
    seqs = [(new, new + context) for new, context in seqs]
    inputs, options = make(seqs=seqs, num_heads=2, head_size=16, value_size=16, block_size=4)
    out, starts = paged_attention(**inputs, **options), inputs["query_start_loc"].tolist()
    for i, (new, _) in enumerate(seqs):
        rows = slice(starts[i], starts[i + 1])
        alone = {
            "query": inputs["query"][rows],
            "block_table": inputs["block_table"][i : i + 1],
            "seq_lens": inputs["seq_lens"][i : i + 1],
            "query_start_loc": torch.tensor([0, new], dtype=torch.int32),
        }
        torch.testing.assert_close(paged_attention(**(inputs | alone), **options), out[rows])


@given(total=st.integers(1, 90), cut=st.integers(0, 90))
def test_a_prompt_in_two_chunks_attends_as_one(total, cut):
    cut = min(cut, total)
    inputs, options = make(seqs=((total, total),), num_heads=2, head_size=16, value_size=16)
    whole = paged_attention(**inputs, **options)
    for start, stop in ((0, cut), (cut, total)):
        chunk = {
            "query": inputs["query"][start:stop],
            "seq_lens": torch.tensor([stop], dtype=torch.int32),
            "query_start_loc": torch.tensor([0, stop - start], dtype=torch.int32),
        }
        out = paged_attention(**(inputs | chunk), **options)
        torch.testing.assert_close(out, whole[start:stop])


@pytest.mark.parametrize("new", [1, 20], ids=["decode", "prompt"])
def test_blocks_beyond_2_to_the_31_elements_are_reached(new, lazy_memory):
    # block id * stride wraps at 32 bits, silently or with a crash
    stride = 2**30 + 16
    inputs, options = make(seqs=((new, 20),), num_heads=2)
    memory = lazy_memory(2 * stride + 4096, F32)
    far = memory.as_strided((3, 2, 16, 128), (stride, 2048, 128, 1))
    far[1:3, ..., :64], far[1:3, ..., 64:] = inputs["key_cache"][1:3], inputs["value_cache"][1:3]
    placed = {"key_cache": far[..., :64], "value_cache": far[..., 64:]}
    out = paged_attention(**(inputs | placed), **options)
    assert torch.equal(out, paged_attention(**inputs, **options))


BAD = {
    "query": (torch.zeros(28, 3, 64), ValueError),
    "key_cache": (torch.zeros(11, 2, 15, 64), ValueError),
    "value_cache": (torch.zeros(11, 2, 16, 64, dtype=torch.float64), TypeError),
    "block_table": (torch.zeros(5, 4, dtype=torch.int64), TypeError),
    "seq_lens": (torch.zeros(5), TypeError),
    "query_start_loc": (torch.tensor([0, 20, 25, 26, 26], dtype=torch.int32), ValueError),
    "window": (0, ValueError),
    "soft_cap": (0.0, ValueError),
    "sinks": (torch.zeros(3), ValueError),
    "k_scale": (torch.tensor(1.0), ValueError),
    "v_scale": (torch.tensor(1.0), ValueError),
    "out": (torch.zeros(28, 4, 64, dtype=F16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs, options = make()
    with pytest.raises(error, match=f"^{name}: expected"):
        paged_attention(**(inputs | options | {name: value}))


def test_a_scale_of_more_than_one_number_is_refused(unchecked):
    inputs, options = make(cache_dtype=F8)
    options["k_scale"] = torch.ones(2)
    with pytest.raises(ValueError, match=r"^k_scale: expected"):
        paged_attention(**inputs, **options)
