"""Cache specs: the shapes of every kind of layer, and what each rank holds of them."""

import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    GroupPlacement,
    full_attention,
    gated_delta_net,
    latent_attention,
    mamba1,
    mamba2,
    plan_pools,
    rg_lru,
    short_conv,
    sliding_window_attention,
)
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from tests.layouts.support import BF16, SPECS, can_be_cut

RANKS = range(1, 17)


def shapes(spec: CacheSpec, block_size: int = 16) -> dict[str, tuple[int, ...]]:
    return {field.name: field.shape for field in spec.page(block_size).fields}


def test_attention_packs_keys_then_values_of_one_head_and_token():
    spec = full_attention(8, 128, BF16)
    assert shapes(spec) == {"k": (8, 16, 128), "v": (8, 16, 128)}
    assert [segment.whole.shape for segment in spec.page(16).segments] == [(8, 16, 256)]
    assert spec.token_bytes == 8 * 256 * 2


def test_attention_in_planes_keeps_keys_apart_from_values():
    spec = full_attention(8, 128, BF16, packed=False)
    assert [segment.whole.shape for segment in spec.page(16).segments] == [(8, 16, 128)] * 2
    assert spec.page(16).offsets() == {"k": 0, "v": 8 * 16 * 128 * 2}
    assert spec.token_bytes == full_attention(8, 128, BF16).token_bytes


def test_latent_attention_keeps_one_row_a_token_on_every_rank():
    spec = latent_attention(512, 64, BF16)
    assert shapes(spec) == {"latent": (16, 512), "rope": (16, 64)}
    assert shapes(spec.tp_shard(5, 8)) == shapes(spec)
    assert spec.token_bytes == 576 * 2


def test_mamba1_keeps_inputs_and_state_of_every_channel():
    spec = mamba1(4096, 16, 4, conv_dtype=BF16)
    assert shapes(spec) == {"conv.x": (4096, 3), "ssm": (4096, 16)}
    assert spec.page(1).nbytes == 4096 * 3 * 2 + 4096 * 16 * 4
    assert not spec.has_tokens
    assert spec.token_bytes == 0


def test_mamba2_keeps_x_and_the_groups_of_b_and_c():
    spec = mamba2(128, 64, 128, 4, n_groups=8, conv_dtype=BF16)
    conv = {"conv.x": (8192, 3), "conv.B": (1024, 3), "conv.C": (1024, 3)}
    assert shapes(spec) == {**conv, "ssm": (128, 64, 128)}


def test_gated_delta_net_keeps_queries_keys_and_values():
    spec = gated_delta_net(16, 32, 128, 64, 4, conv_dtype=BF16)
    conv = {"conv.q": (2048, 3), "conv.k": (2048, 3), "conv.v": (2048, 3)}
    assert shapes(spec) == {**conv, "ssm": (32, 128, 64)}


def test_rg_lru_keeps_inputs_and_one_number_of_every_channel_by_heads():
    spec = rg_lru(10, 256, 4, conv_dtype=BF16)
    assert shapes(spec) == {"conv.x": (2560, 3), "ssm": (2560,)}
    assert shapes(spec.tp_shard(1, 5)) == {"conv.x": (512, 3), "ssm": (512,)}
    with pytest.raises(ValueError, match="tp_size: expected a divisor of 10"):
        spec.tp_shard(0, 4)


def test_a_short_convolution_keeps_its_inputs_alone():
    assert shapes(short_conv(2048, 3, conv_dtype=BF16)) == {"conv.x": (2048, 2)}


def test_conv_order_swaps_channels_and_taps_in_memory():
    assert shapes(mamba1(64, 16, 4, conv_dtype=BF16, conv_order="SD"))["conv.x"] == (3, 64)


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_every_number_of_ranks_covers_every_field_or_is_refused(kind):
    spec = SPECS[kind]
    for tp_size in RANKS:
        if not can_be_cut(spec, tp_size):
            with pytest.raises(ValueError, match="tp_size: expected a divisor"):
                spec.tp_shard(0, tp_size)
            continue
        parts = [spec.tp_shard(rank, tp_size).page(4) for rank in range(tp_size)]
        for i, whole in enumerate(spec.page(4).fields):
            fields = [part.fields[i] for part in parts]
            if whole.shard is None:
                assert all(field == whole for field in fields)
                continue
            held = [field.shard.interval for field in fields if field.shard]
            holders = [sum(a <= x < b for a, b in held) for x in range(whole.shard.extent)]
            units = whole.shard.extent // whole.shard.unit
            assert set(holders) == {max(1, tp_size // units)}
            extents = [field.axis(whole.shard.axis).extent for field in fields]
            assert extents == [interval.size for interval in held]
            assert [f.dtype for f in fields] == [whole.dtype] * tp_size


@pytest.mark.parametrize("heads_per_group", [1, 2, 8])
@pytest.mark.parametrize("n_groups", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["mamba-2", "gated-delta-net"])
def test_each_rank_holds_the_groups_that_its_heads_read(kind, n_groups, heads_per_group):
    heads, size = n_groups * heads_per_group, 4
    if kind == "mamba-2":
        spec = mamba2(heads, 2, size, 4, n_groups=n_groups, conv_dtype=BF16)
    else:
        spec = gated_delta_net(n_groups, heads, size, 2, 4, conv_dtype=BF16)
    shared = {"mamba-2": ("conv.B", "conv.C"), "gated-delta-net": ("conv.q", "conv.k")}[kind]
    for tp_size in (n for n in RANKS if can_be_cut(spec, n)):
        for rank in range(tp_size):
            held = {
                field.name: field.shard.interval
                for field in spec.tp_shard(rank, tp_size).page(1).fields
                if field.shard
            }
            needed = {head // heads_per_group for head in range(*held["ssm"])}
            for name in shared:
                assert needed <= {channel // size for channel in range(*held[name])}


def test_groups_fewer_than_ranks_are_read_where_they_lie():
    # vllm-project/vllm#55208: 1,536 channels, 1 group of 128 states, 3 taps of bf16, TP 1 -> 2;
    # C was read at byte 10,752, past the convolution, and rank 1 read C for B
    spec = mamba2(24, 64, 128, 4, n_groups=1, conv_dtype=BF16)
    [pool] = plan_pools(
        {"mamba": spec},
        layout=KVCacheLayout.LBHNC,
        policy="split",
        num_blocks=1,
        block_size=16,
    )
    source: GroupPlacement = pool.groups[0]
    placed = {field.field.name: field for field in source.fields}
    for rank in range(2):
        reads = {}
        for part in spec.tp_shard(rank, 2).page(1).fields:
            strided = placed[part.name]
            assert part.shard is not None
            first = part.shard.interval.start * strided.strides[0]
            reads[part.name] = (strided.offset + first, part.nbytes)
        assert reads["conv.x"] == (rank * 4608, 4608)
        assert reads["conv.B"] == (9216, 768)
        assert reads["conv.C"] == (9984, 768)
        assert reads["ssm"][0] == 10752 + rank * 12 * 64 * 128 * 4


def test_a_part_is_not_cut_again():
    part = SPECS["gqa-bf16"].tp_shard(1, 2)
    with pytest.raises(ValueError, match="spec: expected the whole model's, got rank 1 of 2"):
        part.tp_shard(0, 2)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_out_of_range_is_refused(rank, size):
    with pytest.raises(ValueError, match=r"tp_(rank|size): expected"):
        SPECS["gqa-bf16"].tp_shard(rank, size)


@pytest.mark.parametrize("window", [None, 1, 2, 5, 8, 100])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_live_blocks_are_those_that_the_next_token_reads(window, block_size):
    attention = full_attention(1, 8, BF16)
    if window is not None:
        attention = sliding_window_attention(1, 8, BF16, window=window)
    for num_tokens in range(1, 30):
        first = 0 if window is None else max(0, num_tokens + 1 - window)
        # the last token's block stays even when the next token reads none: it may have room
        read = {token // block_size for token in [*range(first, num_tokens), num_tokens - 1]}
        assert list(attention.live_blocks(num_tokens, block_size)) == sorted(read)
    assert list(attention.live_blocks(0, block_size)) == []


@pytest.mark.parametrize("window", [None, 1, 2, 5, 8, 100])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_peak_blocks_are_the_most_of_any_shorter_length(window, block_size):
    attention = full_attention(1, 8, BF16)
    if window is not None:
        attention = sliding_window_attention(1, 8, BF16, window=window)
    most = 0
    for num_tokens in range(1, 30):
        # what the token before has left, and the block that the last token is written to
        before = attention.live_blocks(num_tokens - 1, block_size)
        most = max(most, len({*before, (num_tokens - 1) // block_size}))
        assert attention.peak_blocks(num_tokens, block_size) == most
    assert attention.peak_blocks(0, block_size) == 0


def test_a_state_lives_in_one_block_whatever_the_length():
    state = SPECS["mamba-1-DS"]
    assert [list(state.live_blocks(n, 4)) for n in (0, 1, 4, 500)] == [[], [0], [0], [0]]
    assert [state.peak_blocks(n, 4) for n in (0, 1, 4, 500)] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: full_attention(0, 8, BF16), "head: expected a positive multiple of 1, got 0"),
        (lambda: full_attention(2, 0, BF16), r"k.content: expected a positive extent, got 0"),
        (lambda: full_attention(2, 8, BF16, value_size=4, packed=False), "value_size: expected 8"),
        (lambda: sliding_window_attention(2, 8, BF16, window=0), "window: expected None or a pos"),
        (lambda: mamba1(8, 4, 1, conv_dtype=BF16), "conv.x.tap: expected a positive extent, got 0"),
        (lambda: mamba1(8, 4, 4, conv_dtype=BF16, conv_order="XX"), "conv_order: expected 'DS' or"),
        (lambda: full_attention(2, 8, BF16).page(0), "block_size: expected a positive number"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dtype_that_no_kernel_reads_is_refused():
    with pytest.raises(TypeError, match=r"k.dtype: expected .*, got torch.int32"):
        full_attention(2, 8, torch.int32)
