"""Every block has one owner, and requests get all they need or nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockstride.layouts import (
    KVCacheLayout,
    full_attention,
    mamba1,
    plan_pools,
    sliding_window_attention,
)
from blockstride.models.engine.block_manager import BlockManager

ATTENTION = full_attention(2, 16, torch.float32)
WINDOW = sliding_window_attention(2, 16, torch.float32, window=10)
MAMBA = mamba1(32, 4, 4, conv_dtype=torch.float32)


def manager(policy="split", num_blocks=9, max_num_seqs=4, max_len=64, layers=None):
    layers = layers or {"a": ATTENTION, "b": MAMBA}
    pools = plan_pools(
        layers,
        layout=KVCacheLayout.BLHNC,
        policy=policy,
        num_blocks=num_blocks,
        block_size=4,
    )
    return BlockManager(pools, max_num_seqs, max_len)


def test_a_request_holds_the_blocks_of_its_tokens_and_one_state():
    blocks = manager()
    assert blocks.reserve(7, 0, 9)
    attention, state = blocks.tables([blocks.row(7)])
    assert (attention[0, :3] > 0).all()
    assert (attention[0, 3:] == 0).all()
    assert state.shape == (1, 1)
    assert state[0, 0] > 0
    assert blocks.num_free == (5, 7)


def test_growing_keeps_what_a_request_has():
    blocks = manager()
    assert blocks.reserve(0, 0, 5)
    before = blocks.tables([blocks.row(0)])[0][0, :2].tolist()
    assert blocks.reserve(0, 5, 13)
    assert blocks.tables([blocks.row(0)])[0][0, :2].tolist() == before


def test_a_request_that_does_not_fit_takes_nothing():
    blocks = manager()
    assert blocks.reserve(0, 0, 20)
    free = blocks.num_free
    assert not blocks.reserve(1, 0, 20)
    assert blocks.num_free == free
    with pytest.raises(KeyError):
        blocks.row(1)


def test_a_request_waits_for_a_free_row():
    blocks = manager(max_num_seqs=1)
    assert blocks.reserve(0, 0, 1)
    assert not blocks.reserve(1, 0, 1)
    blocks.release(0)
    assert blocks.reserve(1, 0, 1)


def test_blocks_out_of_the_window_of_the_next_token_are_freed():
    blocks = manager(layers={"a": WINDOW})
    assert blocks.reserve(0, 0, 16)
    # token 16 attends to tokens 7 to 16: block 0 holds 0 to 3 and is done with, block 1 is not
    assert blocks.reserve(0, 16, 17)
    table = blocks.tables([blocks.row(0)])[0][0]
    assert (table[:5] > 0).tolist() == [False, True, True, True, True]
    blocks.check()


def test_a_chunk_keeps_the_window_of_its_first_token():
    blocks = manager(layers={"a": WINDOW}, num_blocks=17)
    assert blocks.reserve(0, 0, 16)
    assert blocks.reserve(0, 16, 40)
    table = blocks.tables([blocks.row(0)])[0][0]
    assert (table[:10] > 0).tolist() == [False] + [True] * 9


def test_what_leaves_the_window_makes_room_for_what_enters_it():
    # the window of any token lies in 4 blocks, which is all there are
    blocks = manager(layers={"a": WINDOW}, num_blocks=5)
    assert blocks.reserve(0, 0, 16)
    assert all(blocks.reserve(0, n, n + 1) for n in range(16, 63))
    blocks.check()


@pytest.mark.parametrize("window", [1, 2, 3, 6, 9, 10, 11])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_window_holds_as_many_blocks_as_layouts_say(window, chunk):
    spec = sliding_window_attention(2, 16, torch.float32, window=window)
    blocks = manager(layers={"a": spec}, num_blocks=99)
    most = 0
    # chunks that begin at any place of a block
    for first in range(1, 5):
        for known in range(first, 64 - chunk, chunk):
            assert blocks.reserve(0, known, known + chunk)
            most = max(most, int(blocks.num_held([0])[0]))
        blocks.release(0)
    assert blocks.most_held(np.array([64]), np.array([chunk])).tolist() == [[most]]
    assert chunk > 1 or spec.peak_blocks(64, 4) == most


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["split", "unified"]),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60),
)
def test_no_block_is_ever_lost_or_owned_twice(policy, steps):
    blocks = manager(policy, layers={"a": ATTENTION, "b": MAMBA, "c": WINDOW}, num_blocks=12)
    lengths = {}
    for request, count in steps:
        if count == 0:
            blocks.release(request)
            lengths.pop(request, None)
        else:
            known = lengths.get(request, 0)
            grown = min(known + count, 64)
            if blocks.reserve(request, known, grown):
                lengths[request] = grown
        blocks.check()
    for request in list(lengths):
        blocks.release(request)
    assert blocks.num_free == tuple(pool.num_blocks - 1 for pool in blocks.pools)
