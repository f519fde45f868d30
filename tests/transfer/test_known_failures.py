"""Failures that users of other systems reported: the smallest condition of each, done right."""

import numpy as np
import pytest
import torch

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    PoolPolicy,
    choose_block_size,
    full_attention,
    gated_delta_net,
    latent_attention,
    mamba1,
    mamba2,
    sliding_window_attention,
)
from blockstride.transfer import BlockIds, EngineTransferInfo, TransferRequest, expected_readers
from blockstride.transfer.byte_ranges import byte_ranges
from tests.transfer.support import HandOver, hybrid

BF16 = torch.bfloat16


def engine(
    name: str,
    specs: dict[str, CacheSpec],
    tp_size: int = 1,
    block_size: int = 4,
    *,
    policy: PoolPolicy = "unified",
    layout: KVCacheLayout = KVCacheLayout.LBHNC,
    blocks: int = 80,
    kernel: int | None = None,
) -> EngineTransferInfo:
    counts = (blocks,) if policy == "unified" else (blocks,) * len(set(specs.values()))
    return EngineTransferInfo(
        name,
        specs,
        layout,
        policy,
        block_size,
        counts,
        kernel_block_size=kernel,
        tp_size=tp_size,
    )


def attention(heads: int, **more) -> dict[str, CacheSpec]:
    return {
        "a": full_attention(heads, 4, BF16, **more),
        "b": full_attention(heads, 4, BF16, **more),
    }


@pytest.mark.parametrize(
    ("heads", "producer", "reader"), [(8, 8, 16), (4, 4, 8), (4, 2, 8), (8, 16, 8), (4, 8, 2)]
)
def test_block_bytes_stop_shrinking_when_ranks_outnumber_heads(heads, producer, reader):
    specs = attention(heads)
    local, remote = engine("d", specs, reader), engine("p", specs, producer)
    shares = [info.block_bytes[0] // max(1, heads // info.tp_size) for info in (local, remote)]
    assert shares[0] == shares[1]
    HandOver(local, remote, 10).check()


def test_two_heads_of_one_producer_reach_four_readers():
    HandOver(engine("d", attention(2), 4), engine("p", attention(2), 1), 10).check()


def test_a_reader_of_four_ranks_waits_for_four_different_peers():
    local, remote = engine("d", attention(4), 1), engine("p", attention(4), 4)
    peers = [peer.remote_rank for peer in HandOver(local, remote, 10).plan(0).peers]
    assert peers == [0, 1, 2, 3]
    assert expected_readers(local, remote) == (1, 1, 1, 1)


def test_groups_fewer_than_ranks_are_read_whole_from_where_they_are():
    # x 1536 channels, B and C one group of 128, three taps of bf16: B at byte 9216, C at 9984,
    # and from 10752 on the recurrent state, half of which is 393216 bytes
    specs: dict[str, CacheSpec] = {"m": mamba2(24, 64, 128, 4, n_groups=1, conv_dtype=BF16)}
    local, remote = engine("d", specs, 2), engine("p", specs, 1)
    reads = []
    for rank in range(2):
        (group,) = HandOver(local, remote, 1).plan(rank).peers[0].wire.groups
        reads.append([*zip(group.remote.offsets.tolist(), group.lengths.tolist(), strict=True)])
    assert reads[0] == [(0, 4608), (9216, 1536 + 393_216)]
    assert reads[1] == [(4608, 4608 + 1536), (10_752 + 393_216, 393_216)]
    HandOver(local, remote, 1).check()


def test_block_sizes_may_differ_together_with_parallel_sizes():
    specs: dict[str, CacheSpec] = {
        **attention(4),
        "g": gated_delta_net(4, 8, 4, 4, 4, conv_dtype=BF16),
    }
    for local, remote in (((1, 16), (4, 4)), ((4, 4), (1, 16)), ((2, 12), (4, 8))):
        HandOver(engine("d", specs, *local), engine("p", specs, *remote), 21).check()


def test_a_state_pairs_with_the_newest_of_a_table_that_begins_with_padding():
    specs: dict[str, CacheSpec] = {"m": mamba1(16, 4, 4, conv_dtype=BF16)}
    plan = HandOver(engine("d", specs), engine("p", specs), 9).plan(0)
    local, remote = BlockIds([16]), BlockIds([17], 1)
    (read,) = plan.reads(TransferRequest(9, [local], [remote]))
    assert set(read.wire.local % 80) == {16}
    assert set(read.wire.remote % 80) == {17}


def test_latent_attention_beside_states_reads_from_more_ranks_than_it_has():
    specs: dict[str, CacheSpec] = {
        "l": latent_attention(8, 4, BF16),
        "m": mamba1(16, 4, 4, conv_dtype=BF16),
    }
    local, remote = engine("d", specs, 1), engine("p", specs, 2)
    reads = HandOver(local, remote, 10).plan(0).mapping.reads
    assert {(read.local_group, read.remote_rank) for read in reads} == {(0, 0), (1, 0), (1, 1)}
    HandOver(local, remote, 10).check()


@pytest.mark.parametrize("policy", ["unified", "split"])
def test_groups_that_share_an_address_keep_rows_of_their_own_lengths(policy):
    specs: dict[str, CacheSpec] = {
        "a": full_attention(2, 4, BF16),
        "m": mamba1(16, 4, 4, conv_dtype=BF16),
    }
    local, remote = engine("d", specs, policy=policy), engine("p", specs, policy=policy)
    plan = HandOver(local, remote, 10).plan(0)
    rows = plan.peers[0].wire.rows("remote", {0: 4096, 1: 4096})
    assert rows[:, :2].tolist() == [[4096, 4 * 2 * 16], [4096, 16 * 3 * 2 + 16 * 4 * 4]]
    HandOver(local, remote, 10).check()


def test_a_window_moves_its_last_blocks_only():
    specs: dict[str, CacheSpec] = {
        "a": full_attention(2, 4, BF16),
        "w": sliding_window_attention(2, 4, BF16, window=6),
    }
    hand_over = HandOver(engine("d", specs), engine("p", specs, 1, 8), 30)
    # tokens 25 to 29 are in the last two blocks of four, and in the last of eight
    assert [blocks.first for blocks in hand_over.request().local] == [0, 6]
    assert [blocks.first for blocks in hand_over.request().remote] == [0, 3]
    hand_over.check()
    (read,) = hand_over.plan(0).reads(hand_over.request())
    first = 80 * len(hand_over.plan(0).peers[0].wire.groups[0].lengths)
    # a run for each of two heads and two blocks
    assert (read.wire.local >= first).sum() == 4


@pytest.mark.parametrize(("producer", "reader"), [(64, 128), (128, 64)])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "planes"])
def test_blocks_of_planes_are_re_blocked_token_by_token(producer, reader, packed):
    local = engine("d", attention(2), 1, reader)
    remote = engine("p", attention(2, packed=packed), 1, producer)
    HandOver(local, remote, 150).check()


@pytest.mark.parametrize("reads_packed", [True, False])
def test_planes_outside_the_blocks_and_packed_rows_hold_the_same_tokens(reads_packed):
    local = engine("d", attention(2, packed=reads_packed), blocks=8)
    remote = engine("p", attention(2, packed=not reads_packed), blocks=8)
    HandOver(local, remote, 6).check()


def test_an_attention_page_of_exactly_two_states_needs_no_other_block_size():
    state = mamba1(16, 4, 2, conv_dtype=BF16)
    page = state.page(1).nbytes
    tokens = 2 * page // full_attention(2, 4, BF16).token_bytes
    specs: dict[str, CacheSpec] = {"a": full_attention(2, 4, BF16), "m": state}
    local, remote = engine("d", specs, 1, tokens), engine("p", specs, 1, 4)
    assert local.block_bytes == (2 * page,)
    HandOver(local, remote, 30).check()


def test_the_block_size_of_a_hybrid_is_the_same_at_every_parallel_size():
    specs: dict[str, CacheSpec] = {
        "a": full_attention(8, 128, BF16),
        "m": mamba2(128, 64, 128, 4, n_groups=8, conv_dtype=BF16),
    }
    block_size = choose_block_size(specs, "unified")
    local, remote = (
        engine(name, specs, tp, block_size, blocks=8, kernel=16)
        for name, tp in (("d", 16), ("p", 8))
    )
    plan = HandOver(local, remote, 1).plan(15)
    assert plan.prove().num_tokens == block_size


def test_padded_pages_are_split_into_kernel_blocks():
    specs = hybrid(2, 1)
    for layout in (KVCacheLayout.LBHNC, KVCacheLayout.BLNHC):
        local = engine("d", specs, 1, 16, kernel=4, layout=layout)
        attention_group = local.rank_cache(0).groups[0].placement
        assert attention_group.page_bytes > 4 * attention_group.page.nbytes
        HandOver(local, engine("p", specs, 2, 8, kernel=2), 29).check()


def test_33_kernel_blocks_make_a_block_on_one_side_and_one_on_the_other():
    specs = attention(2)
    local = engine("d", specs, 1, 528, kernel=16, blocks=4)
    remote = engine("p", specs, 1, 16, blocks=40)
    plan = HandOver(local, remote, 1).plan(0)
    assert plan.prove().num_tokens == 528
    assert plan.peers[0].wire.groups[0].local.count == 33 * 4


def test_addresses_beyond_2_to_the_31_are_exact():
    specs = attention(8)
    local = engine("d", specs, 1, 16, blocks=2_000_000, layout=KVCacheLayout.BLHNC)
    remote = engine("p", specs, 1, 16, blocks=8, layout=KVCacheLayout.BLHNC)
    wire = HandOver(local, remote, 16).plan(0).peers[0].wire
    request = TransferRequest(16, [BlockIds([1_999_999])], [BlockIds([7])])
    ranges = byte_ranges(wire, wire.indices(request), "local")
    assert ranges.first.tolist() == [1_999_999 * local.block_bytes[0]]
    assert np.all(ranges.first > 1 << 31)
