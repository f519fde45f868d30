from functools import partial
from typing import Any

import pytest
import torch

from blockstride.kernels import selective_scan, selective_state_update
from blockstride.kernels.mamba1 import reference
from tests.kernels.recurrences import (
    BF16,
    F32,
    STEP_ROWS,
    Arguments,
    as_step,
    selective,
    step_of,
)

make = partial(step_of, selective, num_new=4, dim=72)

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **STEP_ROWS,
    "dim-1": {"dim": 1},
    "dim-128": {"dim": 128},
    "d_state-1": {"d_state": 1},
    "d_state-32-dim-64": {"d_state": 32, "dim": 64},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_recurrence(row, assert_follows):
    inputs = step_of(selective, **({"dim": 72} | row))
    assert_follows(selective_state_update, reference.selective_state_update, inputs)


@pytest.mark.parametrize("num_new", [1, 2, 5, 8])
@pytest.mark.parametrize(("dtype", "state_dtype"), [(F32, F32), (BF16, F32), (F32, BF16)])
def test_a_step_of_several_tokens_is_a_scan_of_short_prompts(
    num_new, dtype, state_dtype, assert_same_bits
):
    lengths = (num_new,) * 3
    prompts = selective(lengths=lengths, dim=72, dtype=dtype, state_dtype=state_dtype)
    # parameters may be finer than activations
    prompts["D"] = torch.randn(72)
    step = as_step(prompts, num_new) | {"ssm_state": prompts["ssm_state"].clone()}
    out = selective_state_update(**step)
    assert_same_bits(out.flatten(0, 1), selective_scan(**prompts))
    assert_same_bits(step["ssm_state"], prompts["ssm_state"])


@pytest.mark.parametrize("num_new", [0, 9])
def test_more_tokens_than_a_step_has_are_refused(num_new):
    with pytest.raises(ValueError, match=r"^x: expected 1 to 8 new tokens a sequence"):
        selective_state_update(**make(num_new=num_new))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["dt", "B", "C", "z", "state_indices", "out"])
def test_a_wrong_argument_is_named(name):
    wrong: dict[str, Any] = {name: torch.zeros(2, 4, 9, dtype=torch.int32)}
    with pytest.raises(ValueError, match=f"^{name}: expected shape"):
        selective_state_update(**(make() | wrong))
