from functools import partial

import pytest
import torch

from blockstride.kernels import ssd_state_update
from blockstride.kernels.mamba2 import reference
from tests.kernels.recurrences import BF16, F32, STEP_ROWS, Arguments, ssd, step_of

make = partial(step_of, ssd, num_new=2, head_dim=10)

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **STEP_ROWS,
    "one-token": {"num_new": 1},
    "eight-tokens": {"num_new": 8},
    "no-sequence": {"num_seqs": 0},
    "one-group": {"num_groups": 1},
    "a-group-a-head": {"num_groups": 4},
    "head_dim-1": {"head_dim": 1},
    "in-place": {"num_new": 1, "head_dim": 80, "d_state": 32},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row, assert_follows):
    assert_follows(ssd_state_update, reference.ssd_state_update, make(**row))


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_a_state_block_past_the_pool_is_refused(state_dtype):
    inputs = make(state_dtype=state_dtype)
    inputs["state_indices"][1] = 15
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 15, got 15"):
        ssd_state_update(**inputs)


BAD = {
    "dt": (torch.zeros(3, 2, 5), ValueError),
    "A": (torch.zeros(4, dtype=torch.float64), TypeError),
    "B": (torch.zeros(3, 1, 2, 16), ValueError),
    "C": (torch.zeros(3, 2, 2, 15), ValueError),
    "ssm_state": (torch.zeros(9, 4, 10, 15), ValueError),
    "state_indices": (torch.zeros(3, dtype=torch.int64), TypeError),
    "D": (torch.zeros(5), ValueError),
    "z": (torch.zeros(3, 2, 4, 10, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(4, 1), ValueError),
    "out": (torch.zeros(3, 2, 4, 10, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    with pytest.raises(error, match=f"^{name}: expected"):
        ssd_state_update(**(make() | {name: value}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"num_new": 9}, "x: expected 1 to 8 new tokens a sequence"),
        ({"d_state": 257}, "B: expected from 1 to 256 states, got 257"),
        ({"num_groups": 3, "num_heads": 4}, "B: expected groups that divide 4 heads, got 3"),
    ],
)
def test_sizes_that_no_kernel_has_are_refused(row, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        ssd_state_update(**make(**row))
