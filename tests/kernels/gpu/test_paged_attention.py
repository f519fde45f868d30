import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget
from support.pools import STRIDE_ORDERS, Batch, batch, lazy_pool, memory_of

from blockstride.kernels.attention import reference
from blockstride.kernels.attention.gpu import attention_schedule, paged_attention
from blockstride.kernels.attention.gpu import tile as attention_tile
from blockstride.kernels.attention.gpu.work_item import NO_SLOT, WorkItem
from blockstride.kernels.common.dispatch import INTERPRET

# decode steps, a chunk with context and an empty sequence in one batch
MIXED = [(1, 70), (40, 25), (0, 0), (1, 0), (3, 17)]
DECODE = [(1, 40), (1, 0), (1, 130)]


def attend(b: Batch, *, window=None, processors=None, **options):
    """Run the kernel on a plan of its own, for so many processors."""
    schedule = attention_schedule(*b.arguments, window=window, num_processors=processors)
    scale = b.query.shape[-1] ** -0.5
    out, lse = paged_attention(
        *b.arguments, scale=scale, window=window, schedule=schedule, return_lse=True, **options
    )
    return out, lse


def exact_and_plain(b: Batch, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs and denominators in float64, and in the dtype of the query."""
    query, *others = b.arguments
    return [reference.paged_attention(q, *others, **options) for q in (query.double(), query)]


def check(b: Batch, *, processors=None, **options) -> None:
    """Hold output and denominators to the budget of the query's dtype."""
    out, lse = attend(b, processors=processors, **options)
    scale = b.query.shape[-1] ** -0.5
    (exact, exact_lse), (plain, _) = exact_and_plain(b, scale=scale, **options)
    assert_within_budget(out, exact, plain)
    tolerance = 64 * torch.finfo(b.query.dtype).eps
    torch.testing.assert_close(lse.double(), exact_lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"dtype": torch.float16},
        {"dtype": torch.float32},
        {"num_heads": 4, "num_kv_heads": 4},
        {"num_heads": 6, "num_kv_heads": 1},
        {"num_heads": 20, "num_kv_heads": 1},
        {"head_size": 64, "value_size": 16},
        {"head_size": 80},
        {"block_size": 7},
        {"block_size": 256},
    ],
    ids=str,
)
def test_mixed_batches_agree_with_float64(changed, device):
    check(batch(MIXED, **changed).to(device))


@pytest.mark.parametrize(
    "options",
    [
        {"window": 20},
        {"soft_cap": 5.0},
        {"sinks": True},
        {"window": 9, "soft_cap": 2.0, "sinks": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("sequences", [DECODE, MIXED], ids=["decode", "mixed"])
def test_windows_caps_and_sinks_agree_with_float64(options, sequences, device):
    options = dict(options)
    b = batch(sequences, window=options.get("window")).to(device)
    if options.get("sinks"):
        options["sinks"] = torch.randn(b.query.shape[1], device=device)
    check(b, **options)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_quantised_caches_keep_the_budget_of_the_query(cache_dtype, device):
    """A scale that is lost, swapped or applied on one path only is far outside."""
    b = batch(MIXED, cache_dtype=cache_dtype).to(device)
    unit = 0.02 if cache_dtype == torch.int8 else 1.0
    k_scale, v_scale = torch.tensor([0.7 * unit, 1.9 * unit], device=device)
    check(b, k_scale=k_scale, v_scale=v_scale)
    check(b, processors=8, k_scale=k_scale, v_scale=v_scale)
    if cache_dtype == torch.float8_e4m3fn:
        check(b)


def test_latent_caches_are_their_own_values(device):
    b = batch(
        [(1, 70), (2, 9)], latent=True, num_heads=16, num_kv_heads=1, head_size=48, value_size=32
    )
    check(b.to(device))


def test_sequences_are_split_when_the_batch_is_small(device):
    b = batch([(1, 700), (2, 300), (1, 5)]).to(device)
    check(b, processors=8)
    alone, lse_alone = attend(b, processors=1)
    split, lse_split = attend(b, processors=8)
    two_ulp = 2 * torch.finfo(torch.bfloat16).eps * alone.abs().max()
    assert (split - alone).abs().max() <= two_ulp
    torch.testing.assert_close(lse_split, lse_alone, rtol=1e-5, atol=1e-5)


def test_splits_with_sinks_count_each_sink_once(device):
    b = batch([(1, 600)]).to(device)
    check(b, processors=8, sinks=torch.full((4,), 3.0, device=device))


def test_splits_are_added_in_the_same_order_every_time(device):
    b = batch([(1, 900)]).to(device)
    first, _ = attend(b, processors=16)
    second, _ = attend(b, processors=16)
    assert torch.equal(first, second)


@pytest.mark.parametrize("order", STRIDE_ORDERS)
@pytest.mark.parametrize("pad", [0, 24], ids=["dense", "padded"])
def test_every_stride_order_gives_the_same_bits(order, pad, device):
    expected = attend(batch(MIXED[:3]).to(device))
    actual = attend(batch(MIXED[:3], order=order, pad=pad).to(device))
    for got, want in zip(actual, expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{}, {"window": 100}], ids=str)
@pytest.mark.parametrize("holes", [False, True], ids=["whole", "holes"])
def test_tiles_by_descriptor_give_the_same_bits_as_tiles_by_pointer(options, holes, device):
    if not INTERPRET and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the device has no tensor maps")
    b = batch([(1, 200), (70, 90)], block_size=64, **options).to(device)
    if holes:
        b.block_table[1, 1] = 0
    schedule = attention_schedule(*b.arguments, **options)
    results = []
    for by_descriptor in (False, True):
        lists = tuple(
            work_list._replace(tile=work_list.tile._replace(by_descriptor=by_descriptor))
            for work_list in schedule
        )
        results.append(paged_attention(*b.arguments, scale=0.2, schedule=lists, **options))
    assert torch.equal(*results)


@pytest.mark.parametrize("context", [0, 200])
def test_long_prompts_are_shared_with_the_specialised_kernel(context, monkeypatch):
    """What Hopper runs: one kernel takes row tiles whose cache is whole, the other the rest."""
    if not INTERPRET:
        pytest.skip("a GPU has the target that it has")
    monkeypatch.setattr(attention_tile, "_target", lambda device: ("cuda", 90))
    b = batch([(520, context), (3, 40)], block_size=128, num_heads=2, num_kv_heads=1)
    lists = attention_schedule(*b.arguments, max_query_len=520)
    columns = WorkItem(*lists[-1].items.unbind(1))
    slots = columns.slot[columns.sequence == 0]
    assert lists[-1].tile.specialised_tokens == 128
    assert 0 < (slots == NO_SLOT.value).sum() < len(slots)
    out = paged_attention(*b.arguments, scale=0.2, schedule=lists)
    (exact, _), (plain, _) = exact_and_plain(b, scale=0.2)
    assert_within_budget(out, exact, plain)
    # options that it has no form for leave all to the other kernel
    capped = paged_attention(*b.arguments, scale=0.2, soft_cap=4.0, schedule=lists)
    (exact, _), (plain, _) = exact_and_plain(b, scale=0.2, soft_cap=4.0)
    assert_within_budget(capped, exact, plain)


@pytest.mark.parametrize("window", [1, 5, 64])
def test_a_window_of_w_tokens_sees_exactly_w(window, device):
    """With equal scores the output is the mean of what is seen; one more token tells."""
    b = batch([(1, 99), (30, 50)], num_heads=1, num_kv_heads=1, dtype=torch.float32).to(device)
    b.query.zero_()
    for sequence, seq_len in enumerate(b.seq_lens.tolist()):
        for position in range(seq_len):
            block = b.block_table[sequence, position // 16]
            b.value_cache[block, 0, position % 16] = float(position)
    out, _ = attend(b, window=window)
    positions = torch.tensor([99, *range(50, 80)], device=device)
    lowest = (positions - window + 1).clamp(min=0)
    torch.testing.assert_close(out[:, 0, 0], (positions + lowest) / 2, rtol=1e-6, atol=0)


def test_a_decode_step_keeps_its_window_past_512_tokens(device):
    """The window of 512 tokens, one token after 600."""
    check(batch([(1, 600)], window=512).to(device), window=512)


def test_chunks_of_a_prompt_give_what_the_whole_prompt_gives(device):
    """The second chunk's positions start where the first one ended."""
    whole = batch([(70, 0)], dtype=torch.float32).to(device)
    expected, _ = attend(whole)
    for begin, end in ((0, 33), (33, 64), (64, 70)):
        starts = torch.tensor([0, end - begin], dtype=torch.int32, device=device)
        lens = torch.tensor([end], dtype=torch.int32, device=device)
        chunk = Batch(
            whole.query[begin:end], whole.key_cache, whole.value_cache,
            whole.block_table, lens, starts,
        )  # fmt: skip
        torch.testing.assert_close(attend(chunk)[0], expected[begin:end])


@pytest.mark.parametrize("sequences", [[], [(0, 0)], [(0, 5), (0, 0)]], ids=str)
def test_batches_without_tokens_are_legal(sequences, device):
    """Nothing to do is no error."""
    b = batch(sequences or [(0, 0)]).to(device)
    out, lse = attend(b) if b.query.shape[0] else (b.query, b.query[..., 0])
    assert out.shape[0] == lse.shape[0] == 0
    alone = paged_attention(*b.arguments, scale=1.0)
    assert isinstance(alone, torch.Tensor)
    assert alone.shape == (0, 4, 32)


def test_missing_blocks_are_not_seen(device):
    b = batch([(1, 200), (1, 20)]).to(device)
    b.block_table[0, 1] = 0
    b.block_table[0, 2] = -1
    b.block_table[1] = 0
    check(b)
    out, lse = attend(b)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert (lse[1] == -torch.inf).all()


def test_caches_and_what_lies_round_the_output_stay_as_they_were(device):
    b = batch(MIXED, pad=8).to(device)
    before = memory_of(b.key_cache).clone()
    around = torch.full((b.query.shape[0] + 2, 9, 70), 7.0, dtype=b.query.dtype, device=device)
    out = around[1:-1, 1:9:2, 3:67:2]
    expected, _ = attend(b)
    assert attend(b, out=out)[0] is out
    assert torch.equal(out, expected)
    assert torch.equal(memory_of(b.key_cache), before)
    out.fill_(7.0)
    assert (around == 7.0).all()


@pytest.mark.parametrize(
    ("block", "shape"),
    [(65_536, (16, 8, 128)), (65_535, (16, 8, 128)), (7_768, (480, 1, 288))],
    ids=str,
)
def test_block_ids_times_strides_may_pass_2_to_the_31(block, shape, overflow_is_an_error):
    """Block 65,535 is the last one that 32 bits reach."""
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    tokens, heads, size = shape
    row = heads * 2 * size
    strides = (tokens * row, 2 * size, row, 1)
    pool = lazy_pool((block + 1, heads, tokens, 2 * size), strides, torch.bfloat16)
    pool[block, :, :5] = torch.randn(heads, 5, 2 * size)
    b = Batch(
        torch.randn(1, heads, size).bfloat16(),
        pool[..., :size],
        pool[..., size:],
        torch.tensor([[block]], dtype=torch.int32),
        torch.tensor([5], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
    )
    check(b)


def test_strides_inside_a_block_may_pass_2_to_the_31_too(overflow_is_an_error):
    """Tokens outermost, a whole pool apart."""
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    pool = lazy_pool((3, 1, 16, 64), (64, 64, 2**28, 1), torch.bfloat16)
    pool[2, :, :12] = torch.randn(12, 64)
    b = Batch(
        torch.randn(1, 2, 32).bfloat16(),
        pool[..., :32],
        pool[..., 32:],
        torch.tensor([[2]], dtype=torch.int32),
        torch.tensor([12], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
    )
    check(b)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    sequences=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 70)), min_size=1, max_size=4
    ).filter(lambda s: any(query for query, _ in s)),
    block_size=st.sampled_from([3, 16, 64]),
    window=st.sampled_from([None, 1, 13]),
    processors=st.sampled_from([1, 4]),
)
def test_ragged_batches_agree_with_float64(sequences, block_size, window, processors):
    device = "cpu" if INTERPRET else "cuda"
    b = batch(sequences, block_size=block_size, window=window).to(device)
    check(b, processors=processors, window=window)
