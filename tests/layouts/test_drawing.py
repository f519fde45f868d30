"""The drawing of a group: right for any order, and readable in 80 columns without colour."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
from hypothesis import given
from rich.console import Console

from blockstride.layouts import GroupPlacement, KVCacheLayout, full_attention, mamba2, plan_pools
from blockstride.layouts.drawing import MAP_BLOCKS, MAP_COLUMNS, MAP_LAYERS, draw
from tests.layouts.support import BF16, LAW, byte_addresses, pool_cases


def drawn(placement: GroupPlacement, width: int = 80) -> str:
    screen = StringIO()
    Console(file=screen, width=width, force_terminal=True).print(draw(placement))
    return "\n".join(line.rstrip() for line in screen.getvalue().splitlines())


def hybrid(order: str) -> tuple[GroupPlacement, ...]:
    attention = full_attention(4, 32, BF16)
    state = mamba2(8, 8, 16, 4, n_groups=2, conv_dtype=BF16, conv_order="SD")
    layers = {"a": attention, "b": attention, "m": state, "n": state, "o": state}
    [pool] = plan_pools(
        layers, layout=KVCacheLayout(order), policy="unified", num_blocks=6, block_size=16
    )
    return pool.groups


PICTURE = """\
memory of 4 blocks and 2 layers: # all, + some, . none
block    |................################................................|
one head |................####............................................|
one half |................########........................................|

inside        bytes  in memory order (BHLNC)
pool         98,304  | block 0 (null) | 1 | ... | 5 |  6 x 16,384
 block 1     16,384  | head 0 | 1 | 2 | 3 |  4 x 4,096
  head 0      4,096  | layer 0 | 1 |  2 x 2,048
   layer 0    2,048  | token 0 | 1 | ... | 15 |  16 x 128
    token 0     128  | k 64 | v 64 |

a peer reads                bytes  in runs  of bytes each
block                      16,384        1         16,384
one head                    4,096        1          4,096
one half, at twice the TP   8,192        1          8,192"""


def test_heads_outermost_in_a_block_are_drawn_as_one_run_a_head():
    assert drawn(hybrid("BHLNC")[0]) == PICTURE


@pytest.mark.parametrize("order", ["LBNHC", "BLNHC"])
def test_tokens_outside_heads_scatter_a_head_over_the_page(order):
    text = drawn(hybrid(order)[0])
    assert "| token 0 | 1 | ... | 15 |  16 x 512" in text
    assert "| head 0 | 1 | 2 | 3 |  4 x 128" in text
    assert "one head                    4,096       32            128" in text


def test_a_state_page_shows_fields_padding_and_taps():
    text = " ".join(drawn(hybrid("LBHNC")[1]).split())
    assert "| conv 768 | ssm[head, head_dim, state] 4,096 | padding 3,328 |" in text
    assert "| tap 0 | 1 | 2 | 3 x 256" in text
    assert "| conv.x 128 | conv.B 64 | conv.C 64 |" in text


def test_slots_without_a_layer_say_so():
    assert "| layer 0 | 1 (none) |" in drawn(hybrid("LBHNC")[2])


def test_a_pool_of_any_number_of_blocks_is_drawn_at_once():
    many = replace(hybrid("BLHNC")[0], num_blocks=10**15)
    assert "| block 0 (null) | 1 | ... | 999,999,999,999,999 |" in " ".join(drawn(many).split())


@LAW
@given(pool_cases())
def test_every_line_fits_80_columns_and_needs_no_colour(case):
    for placement in case.plan().groups:
        text = drawn(placement)
        assert max(map(len, text.splitlines())) <= 80
        # a column that is cut short ends in an ellipsis
        assert text.isascii()
        assert "\x1b" not in text


@LAW
@given(pool_cases())
def test_the_map_marks_the_bytes_of_the_block(case):
    for placement in case.plan().groups:
        small = replace(
            placement,
            group=replace(placement.group, layer_names=placement.group.layer_names[:MAP_LAYERS]),
            num_slots=min(placement.num_slots, MAP_LAYERS),
            num_blocks=MAP_BLOCKS,
        )
        storage = torch.zeros(small.num_slots * MAP_BLOCKS * small.page_bytes, dtype=torch.int8)
        for slot in range(len(small.group.layer_names)):
            for placed in small.fields:
                rows = small.byte_view(storage, placed, slot)[small.kernel_blocks :]
                storage[byte_addresses(rows[: small.kernel_blocks], storage)] = 1
        marks = drawn(placement).splitlines()[1].split("|")[1]
        # cut every byte into as many pieces as there are columns, so that borders fall between them
        columns = storage.repeat_interleave(MAP_COLUMNS).view(MAP_COLUMNS, -1)
        wanted = ["#" if c.all() else "+" if c.any() else "." for c in columns]
        assert marks == "".join(wanted)
