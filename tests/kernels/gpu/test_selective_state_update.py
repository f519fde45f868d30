from functools import partial

import pytest
from support.budget import assert_follows

from blockstride.kernels.mamba1 import reference
from blockstride.kernels.mamba1.gpu import selective_state_update
from tests.kernels.recurrences import STEP_ROWS, Arguments, at_extremes, selective, step_of

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **STEP_ROWS,
    "no-sequence": {"num_seqs": 0},
    "dim-1": {"dim": 1},
    "dim-200": {"dim": 200},
    "d_state-1": {"d_state": 1},
    "d_state-128": {"d_state": 128},
    "d_state-256": {"d_state": 256},
}

make = partial(step_of, selective, num_seqs=5, num_new=1, dim=40)


def check(inputs: Arguments) -> None:
    assert_follows(selective_state_update, reference.selective_state_update, inputs)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row):
    check(make(**row))


@pytest.mark.parametrize("num_new", [2, 8])
def test_a_step_may_have_several_tokens(num_new):
    check(make(num_new=num_new))


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(step, rate):
    check(at_extremes(make(num_seqs=2, num_new=3), step, rate))
