from functools import partial

import pytest
import torch

from blockstride.kernels import selective_scan
from blockstride.kernels.mamba1 import reference
from tests.kernels.recurrences import (
    BF16,
    DTYPE_ROWS,
    OPTION_ROWS,
    PROMPT_ROWS,
    Arguments,
    selective,
)

make = partial(selective, lengths=(5, 0, 1, 9), dim=72)

ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **OPTION_ROWS,
    **DTYPE_ROWS,
    # steps may be negative, and states then grow with every token
    "bias-without-softplus": {"dt_softplus": False, "lengths": (2, 0, 3)},
    "dim-1": {"dim": 1},
    "dim-128": {"dim": 128},
    "d_state-1": {"d_state": 1},
    "d_state-5": {"d_state": 5},
    "d_state-32-dim-64": {"d_state": 32, "dim": 64},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row, assert_follows):
    assert_follows(selective_scan, reference.selective_scan, make(**row))


BAD = {
    "dt": (torch.zeros(15, 71), ValueError),
    "A": (torch.zeros(72, 16, dtype=torch.float64), TypeError),
    "B": (torch.zeros(15, 17), ValueError),
    "C": (torch.zeros(14, 16), ValueError),
    "ssm_state": (torch.zeros(9, 72, 15), ValueError),
    "state_indices": (torch.zeros(4, dtype=torch.int64), TypeError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 15], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "D": (torch.zeros(71), ValueError),
    "z": (torch.zeros(15, 72, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(72, 1), ValueError),
    "checkpoint_tokens": (torch.zeros(2, dtype=torch.int32), ValueError),
    "checkpoint_indices": (torch.zeros(2, dtype=torch.int32), ValueError),
    "out": (torch.zeros(15, 72, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    with pytest.raises(error, match=f"^{name}: expected"):
        selective_scan(**(make() | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_more_states_than_fit_are_refused():
    with pytest.raises(ValueError, match=r"^A: expected from 1 to 256 states, got 257"):
        selective_scan(**make(d_state=257))
