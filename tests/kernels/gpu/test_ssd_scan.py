from functools import partial

import pytest
import torch
from support.budget import assert_follows

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.mamba2 import reference
from blockstride.kernels.mamba2.gpu import ssd_scan
from tests.kernels.recurrences import (
    BF16,
    DTYPE_ROWS,
    F32,
    OPTION_ROWS,
    PROMPT_ROWS,
    Arguments,
    at_extremes,
    keep,
    ssd,
)

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **OPTION_ROWS,
    **DTYPE_ROWS,
    "one-group": {"num_groups": 1},
    "a-group-a-head": {"num_groups": 4},
    "head_dim-1": {"head_dim": 1},
    "head_dim-80": {"head_dim": 80},
    "d_state-5": {"d_state": 5},
    "d_state-144": {"d_state": 144},
}


def check(inputs: Arguments, chunk_size: int = 16) -> None:
    # states are sums of products in the dtype of x
    scan = partial(ssd_scan, chunk_size=chunk_size)
    assert_follows(scan, reference.ssd_scan, inputs, plain_dtype=inputs["x"].dtype)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row):
    check(ssd(**row))


def test_chunks_may_have_64_tokens():
    check(ssd(lengths=(70, 3)), chunk_size=64)


# the interpreter is slow
@pytest.mark.parametrize("length", [1025 if INTERPRET else 4097])
def test_long_prompts_keep_the_budget(length):
    check(ssd(lengths=(length,), num_heads=1, num_groups=1), chunk_size=128)


@pytest.mark.parametrize("lengths", [(255,), (256,), (257, 3)], ids=str)
def test_prompts_need_not_be_a_multiple_of_the_chunk(lengths):
    check(ssd(lengths=lengths, num_heads=1, num_groups=1), chunk_size=256)


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(step, rate):
    check(at_extremes(ssd(lengths=(20,), num_heads=2), step, rate))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_small_steps_among_large_ones_decay_as_they_should(dtype):
    """A running sum that large steps have made large must not swallow the small ones."""
    inputs = ssd(lengths=(300,), num_heads=2, dt_bias=False, dt_softplus=False, dtype=dtype)
    steps = torch.where(torch.rand(300, 2) < 0.3, 100.0, 0.01 * torch.rand(300, 2))
    inputs["dt"] = steps.to(dtype)
    inputs["A"] *= 16
    check(inputs, chunk_size=256)


def test_checkpoints_hold_the_states_that_the_recurrence_passes():
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = ssd(lengths=(3, 40), D=False, z=False)
    keep(inputs, *((3 + end, 4 + i) for i, end in enumerate((0, 14, 15, 16, 39))))
    check(inputs)
