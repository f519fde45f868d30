from typing import Any

import pytest
import torch

from blockstride.kernels import ssd_scan
from blockstride.kernels.mamba2 import reference
from tests.kernels.recurrences import (
    BF16,
    DTYPE_ROWS,
    OPTION_ROWS,
    PROMPT_ROWS,
    Arguments,
    at_extremes,
    keep,
    ssd,
)

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **OPTION_ROWS,
    **DTYPE_ROWS,
    "bare": {"D": False, "z": False, "dt_bias": False},
    "a-group-a-head": {"num_groups": 4},
    "d_state-5": {"d_state": 5},
    "head_dim-1": {"head_dim": 1},
    "head_dim-80": {"head_dim": 80},
}


def in_chunks_of_16(**inputs: Any) -> torch.Tensor:
    return ssd_scan(**inputs, chunk_size=16)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row, assert_follows):
    assert_follows(in_chunks_of_16, reference.ssd_scan, ssd(**row))


def test_prompts_may_be_longer_than_the_longest_chunk(assert_follows):
    assert_follows(ssd_scan, reference.ssd_scan, ssd(lengths=(300, 3)))


@pytest.mark.parametrize("step", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(
    step, rate, assert_follows
):
    inputs = ssd(lengths=(40,), D=False, z=False)
    assert_follows(in_chunks_of_16, reference.ssd_scan, at_extremes(inputs, step, rate))


def test_checkpoints_hold_the_states_that_the_recurrence_passes(assert_follows):
    inputs = ssd(lengths=(3, 40))
    keep(inputs, (3, 1), (17, 4), (18, 5), (19, 6), (42, 7), (99, 0))
    assert_follows(in_chunks_of_16, reference.ssd_scan, inputs)


BAD = {
    "x": (torch.zeros(43, 4, 300), ValueError),
    "dt": (torch.zeros(43, 5), ValueError),
    "A": (torch.zeros(4, dtype=torch.float64), TypeError),
    "B": (torch.zeros(43, 3, 16), ValueError),
    "C": (torch.zeros(43, 2, 16, dtype=BF16), TypeError),
    "ssm_state": (torch.zeros(9, 4, 24, 15), ValueError),
    "state_indices": (torch.tensor([2, 3, 16, 4], dtype=torch.int32), ValueError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 43], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "D": (torch.zeros(5), ValueError),
    "z": (torch.zeros(43, 4, 24, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(4, 1), ValueError),
    "chunk_size": (48, ValueError),
    "checkpoint_tokens": (torch.tensor([3, 2], dtype=torch.int32), ValueError),
    "checkpoint_indices": (None, ValueError),
    "out": (torch.zeros(43, 4, 24, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs = ssd()
    keep(inputs, (2, 7), (3, 8))
    wanted = "checkpoint_tokens" if name == "checkpoint_indices" else name
    # the groups of C are those of B, the heads of the pool those of x
    wanted = {"B": "C", "x": "ssm_state"}.get(wanted, wanted)
    with pytest.raises(error, match=f"^{wanted}: expected"):
        ssd_scan(**(inputs | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_groups_must_divide_the_heads():
    with pytest.raises(ValueError, match=r"^B: expected groups that divide 4 heads, got 3"):
        ssd_scan(**ssd(num_groups=3))
