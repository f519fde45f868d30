"""What an engine says of its room is what its blocks hold."""

import random

import pytest
import torch

from blockstride.layouts import (
    KVCacheLayout,
    full_attention,
    mamba1,
    plan_pools,
    sliding_window_attention,
)
from blockstride.models.engine.block_manager import BlockManager
from blockstride.models.engine.room import STEP, Room

MAX_LEN, CHUNK, NUM_ROWS = 200, 64, 6
LAYERS = {
    "a": full_attention(2, 16, torch.float32),
    "b": mamba1(32, 4, 4, conv_dtype=torch.float32),
    "c": sliding_window_attention(2, 16, torch.float32, window=40),
}


@pytest.mark.parametrize("policy", ["split", "unified"])
def test_the_longest_sequence_that_fits_is_found(policy):
    layout = KVCacheLayout.BLHNC
    num_blocks = [30, 6, 30] if policy == "split" else 40
    pools = plan_pools(LAYERS, layout=layout, policy=policy, block_size=8, num_blocks=num_blocks)
    blocks, draw = BlockManager(pools, NUM_ROWS, MAX_LEN), random.Random(1)
    room, seen, held = Room(blocks, MAX_LEN, CHUNK), set(), []
    for i in range(200):
        if held and draw.random() < 0.5:
            blocks.release(held.pop(draw.randrange(len(held))))
        elif blocks.has_row and blocks.reserve(i, 0, draw.randint(1, CHUNK)):
            held.append(i)
        longest = room.num_tokens
        seen.add(longest)
        assert longest % STEP == 0 or longest == MAX_LEN
        # one that is computed at once has blocks outside of windows as well
        if 0 < longest <= CHUNK:
            assert blocks.reserve(-1, 0, longest)
            blocks.release(-1)
        after = min(longest + STEP, MAX_LEN)
        if longest < after <= CHUNK and blocks.has_row:
            assert not blocks.reserve(-1, 0, after)
        assert longest > 0 or not blocks.has_row or not blocks.reserve(-1, 0, STEP)
    assert len(seen) > 3
