from functools import partial
from typing import Any

import pytest
import torch
from support.budget import assert_follows
from support.pools import lazy_pool
from support.recurrences import recurrence
from torch import Tensor

from blockstride.kernels import StateRing
from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.mamba2.gpu import fold_state_ring, ssd_ring_update
from tests.kernels.recurrences import BF16, F32, OPTION_ROWS, Arguments, ssd
from tests.kernels.ring_laws import *  # noqa: F403
from tests.kernels.ring_laws import Rings, make, with_ring

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **OPTION_ROWS,
    "base": {},
    "a-ring-of-one": {"length": 1},
    "a-ring-of-five": {"length": 5},
    "no-sequence": {"lengths": ()},
    "two-groups-of-two-heads": {"num_heads": 4, "num_groups": 2},
    "head_dim-20": {"head_dim": 20},
    "d_state-5": {"d_state": 5},
    "d_state-128": {"d_state": 128},
    "bf16": {"dtype": BF16},
}


@pytest.fixture
def rings() -> Rings:
    return Rings(ssd_ring_update, fold_state_ring)


def stepped_and_folded(length: int = 3, **prompts: Any) -> Tensor:
    """The outputs of 8 steps over a ring, and at the end no ring but states."""
    rings, inputs = Rings(ssd_ring_update, fold_state_ring), with_ring(prompts, 8, length)
    out = rings.stepped(inputs, range(8))
    rings.folded(inputs)
    assert (inputs["ring"].held == 0).all()
    return out.flatten(0, 1)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_steps_over_a_ring_follow_the_recurrence_and_folding_gives_the_state(row):
    options = {"lengths": (8, 8), "num_heads": 2, "num_groups": 1, "head_dim": 16} | row
    length = options.pop("length", 3)
    assert_follows(partial(stepped_and_folded, length), recurrence, ssd(**options))


@pytest.mark.parametrize("rate", [1e-5, 1.0, 1e4])
def test_decay_rates_at_their_extremes_neither_overflow_nor_vanish(rate):
    prompts = ssd(lengths=(8, 8), num_heads=2, num_groups=1, head_dim=16)
    prompts["A"] *= rate
    prompts["dt"] += 20
    assert_follows(partial(stepped_and_folded, 6), recurrence, prompts)


def test_block_ids_times_strides_may_pass_2_to_the_31(
    rings, overflow_is_an_error, assert_same_bits
):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    far, inputs = 65_537, make(num_seqs=1, steps=3, length=1)
    parts = []
    for pool in inputs["ring"]:
        strides = (32_768, *torch.empty(pool.shape[1:]).stride())
        parts.append(lazy_pool((far + 1, *pool.shape[1:]), strides, F32))
    state = lazy_pool((far + 1, 2, 16, 16), (32_768, 256, 16, 1), F32)
    state[far] = inputs["ssm_state"][2]
    indices = torch.tensor([far], dtype=torch.int32)
    moved = {"ssm_state": state, "ring": StateRing(*parts), "state_indices": indices}
    out = rings.stepped(inputs | moved, range(3))
    assert_same_bits(out, rings.stepped(inputs, range(3)))
    assert_same_bits(state[far], inputs["ssm_state"][2])
