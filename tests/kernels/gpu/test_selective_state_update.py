import pytest
from support.budget import assert_follows
from support.recurrences import recurrence

from blockstride.kernels.mamba1.gpu import selective_state_update
from tests.kernels.recurrences import STEP_ROWS, Arguments, at_extremes, over_prompts, selective

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **STEP_ROWS,
    "no-sequence": {"lengths": ()},
    "dim-1": {"dim": 1},
    "dim-200": {"dim": 200},
    "d_state-1": {"d_state": 1},
    "d_state-128": {"d_state": 128},
    "d_state-256": {"d_state": 256},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row):
    prompts = selective(**({"lengths": (1, 1, 1), "dim": 40} | row))
    assert_follows(over_prompts(selective_state_update, num_new=1), recurrence, prompts)


@pytest.mark.parametrize("num_new", [2, 8])
def test_a_step_may_have_several_tokens(num_new):
    prompts = selective(lengths=(num_new,) * 3, dim=40)
    assert_follows(over_prompts(selective_state_update, num_new), recurrence, prompts)


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(step, rate):
    prompts = at_extremes(selective(lengths=(3, 3), dim=40), step, rate)
    assert_follows(over_prompts(selective_state_update, num_new=3), recurrence, prompts)
