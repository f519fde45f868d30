from functools import partial
from importlib import import_module

import pytest
from support.budget import assert_follows

from blockstride.kernels.mamba2 import reference
from blockstride.kernels.mamba2.gpu import ssd_state_update
from tests.kernels.recurrences import STEP_ROWS, Arguments, at_extremes, ssd, step_of

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **STEP_ROWS,
    "no-sequence": {"num_seqs": 0},
    "one-group": {"num_groups": 1},
    "a-group-a-head": {"num_groups": 4},
    "head_dim-1": {"head_dim": 1},
    "head_dim-20": {"head_dim": 20},
    "d_state-128": {"d_state": 128},
}

make = partial(step_of, ssd, num_new=1, head_dim=32)


def check(inputs: Arguments) -> None:
    assert_follows(ssd_state_update, reference.ssd_state_update, inputs)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row):
    check(make(**row))


@pytest.mark.parametrize("num_new", [2, 8])
def test_a_step_may_have_several_tokens(num_new):
    check(make(num_seqs=4, num_new=num_new))


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(step, rate):
    check(at_extremes(make(num_new=3), step, rate))


def test_a_program_that_walks_a_head_gives_the_bits_of_many(assert_same_bits, monkeypatch):
    inputs = step_of(ssd, num_new=2, d_state=128, head_dim=30)
    states = inputs["ssm_state"].clone()
    expected = ssd_state_update(**inputs)
    module = import_module("blockstride.kernels.mamba2.gpu.ssd_state_update")
    monkeypatch.setattr(module, "ENOUGH_PROGRAMS", 1)
    assert_same_bits(ssd_state_update(**(inputs | {"ssm_state": states})), expected)
    assert_same_bits(states, inputs["ssm_state"])
