from functools import partial

import pytest
from support.budget import assert_follows

from blockstride.kernels.lru import reference
from blockstride.kernels.lru.gpu import rg_lru, rg_lru_update
from tests.kernels.recurrences import DTYPE_ROWS, PROMPT_ROWS, Arguments, real_gated, step_of

pytestmark = pytest.mark.usefixtures("on_device")

OPTION_ROWS: dict[str, Arguments] = {
    "no-z": {"z": False},
    "no-bias": {"bias": False},
    "dim-1": {"dim": 1},
    "dim-130": {"dim": 130},
}


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("row", (rows := PROMPT_ROWS | DTYPE_ROWS | OPTION_ROWS).values(), ids=rows)
def test_outputs_and_states_follow_the_recurrence(row, chunk_size):
    function = partial(rg_lru, chunk_size=chunk_size)
    assert_follows(function, reference.rg_lru, real_gated(**row))


@pytest.mark.parametrize(("length", "chunk_size"), [(129, 0), (127, 64), (2048, 64)])
def test_long_prompts_of_any_length_keep_the_budget(length, chunk_size):
    function = partial(rg_lru, chunk_size=chunk_size)
    assert_follows(function, reference.rg_lru, real_gated((length,), dim=8, z=False))


@pytest.mark.parametrize("row", (rows := DTYPE_ROWS | OPTION_ROWS).values(), ids=rows)
@pytest.mark.parametrize("num_new", [None, 1, 8])
def test_outputs_and_states_of_a_step_follow_it_too(row, num_new):
    inputs = step_of(real_gated, 20, num_new, **({"dim": 40} | row))
    assert_follows(rg_lru_update, reference.rg_lru_update, inputs)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-2, 1e2, 1e30])
def test_decays_at_their_extremes_neither_overflow_nor_vanish(scale):
    inputs = real_gated((12,), dim=24, z=False)
    inputs["A"] *= scale
    for chunk_size in (0, 8):
        function = partial(rg_lru, chunk_size=chunk_size)
        assert_follows(function, reference.rg_lru, {**inputs, "ssm_state": inputs["ssm_state"] * 1})
