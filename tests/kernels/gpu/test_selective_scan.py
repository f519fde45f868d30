from functools import partial
from typing import Any

import pytest
from support.budget import assert_follows

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.mamba1 import reference
from blockstride.kernels.mamba1.gpu import selective_scan
from tests.kernels.recurrences import (
    DTYPE_ROWS,
    OPTION_ROWS,
    PROMPT_ROWS,
    Arguments,
    at_extremes,
    selective,
)

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **OPTION_ROWS,
    **DTYPE_ROWS,
    "dim-1": {"dim": 1},
    "dim-40": {"dim": 40},
    "d_state-1": {"d_state": 1},
    "d_state-5": {"d_state": 5},
    "d_state-128": {"d_state": 128, "dim": 3},
}


def check(inputs: Arguments, chunk_size: int) -> None:
    assert_follows(partial(selective_scan, chunk_size=chunk_size), reference.selective_scan, inputs)


@pytest.mark.parametrize("chunk_size", [0, 16])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row, chunk_size):
    check(selective(**row), chunk_size)


# the interpreter is slow; sums over ten chunks are many enough there
@pytest.mark.parametrize(
    ("length", "chunk_size"), [(129, 0), (127, 64), (640, 64) if INTERPRET else (4096, 512)]
)
def test_long_prompts_of_any_length_keep_the_budget(length, chunk_size):
    options: dict[str, Any] = OPTION_ROWS["no-z"] | OPTION_ROWS["no-softplus"]
    check(selective(lengths=(length,), dim=4, d_state=4, **options), chunk_size)


@pytest.mark.parametrize("chunk_size", [0, 8])
@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(
    step, rate, chunk_size
):
    check(at_extremes(selective(lengths=(12,), dim=4), step, rate), chunk_size)
