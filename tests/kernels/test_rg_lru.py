from functools import partial
from typing import Any

import pytest
import torch

from blockstride.checks import full_checks
from blockstride.kernels import rg_lru, rg_lru_update
from blockstride.kernels.lru import reference
from tests.kernels.gpu.support.budget import cast
from tests.kernels.recurrences import (
    BF16,
    DTYPE_ROWS,
    F32,
    PROMPT_ROWS,
    Arguments,
    as_step,
    real_gated,
    step_of,
)

make = partial(real_gated, lengths=(5, 0, 1, 9), dim=72)
make_step = partial(step_of, real_gated, num_new=4, dim=72)

OPTION_ROWS: dict[str, Arguments] = {
    "no-z": {"z": False},
    "no-bias": {"bias": False},
    "dim-1": {"dim": 1},
    "dim-128": {"dim": 128},
}


@pytest.mark.parametrize("row", (rows := PROMPT_ROWS | DTYPE_ROWS | OPTION_ROWS).values(), ids=rows)
def test_outputs_and_states_follow_the_recurrence(row, assert_follows):
    assert_follows(rg_lru, reference.rg_lru, make(**row))


@pytest.mark.parametrize("row", (rows := DTYPE_ROWS | OPTION_ROWS).values(), ids=rows)
@pytest.mark.parametrize("num_new", [None, 1, 8])
def test_outputs_and_states_of_a_step_follow_it_too(row, num_new, assert_follows):
    inputs = step_of(real_gated, num_new=num_new, **({"dim": 72} | row))
    assert_follows(rg_lru_update, reference.rg_lru_update, inputs)


def test_the_first_input_of_a_sequence_is_not_weighed_and_a_state_of_zero_is_no_first():
    inputs = make(lengths=(1, 1), z=False, bias=False)
    inputs["has_initial_state"] = torch.tensor([False, True])
    inputs["ssm_state"].zero_()
    taken = inputs["input_gate"].sigmoid() * inputs["x"]
    weight = -torch.expm1(2 * inputs["A"] * inputs["recurrence_gate"][1].sigmoid())
    out = rg_lru(**inputs)
    torch.testing.assert_close(out[0], taken[0])
    torch.testing.assert_close(out[1], taken[1] * weight.sqrt())


def test_decays_near_one_keep_the_digits_of_what_is_added():
    """The square of such a decay, in float32, is 1 or next to it."""
    inputs = make(lengths=(1,), z=False)
    inputs["A"] = -torch.logspace(-12, -5, 72)
    inputs["ssm_state"].zero_()
    exact = reference.rg_lru(**cast(inputs, torch.float64))
    torch.testing.assert_close(rg_lru(**inputs), exact.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("num_new", [1, 2, 5, 8])
@pytest.mark.parametrize(("dtype", "state_dtype"), [(F32, F32), (BF16, F32), (F32, BF16)])
def test_a_step_of_several_tokens_is_a_prompt_that_goes_on(
    num_new, dtype, state_dtype, assert_same_bits
):
    prompts = real_gated((num_new,) * 3, dim=72, dtype=dtype, state_dtype=state_dtype)
    step = as_step(prompts, num_new) | {"ssm_state": prompts["ssm_state"].clone()}
    assert_same_bits(rg_lru_update(**step).flatten(0, 1), rg_lru(**prompts))
    assert_same_bits(step["ssm_state"], prompts["ssm_state"])


BAD: dict[str, tuple[Any, type[Exception]]] = {
    "recurrence_gate": (torch.zeros(15, 71), ValueError),
    "input_gate": (torch.zeros(14, 72), ValueError),
    "A": (torch.zeros(72, dtype=BF16), TypeError),
    "ssm_state": (torch.zeros(9, 71), ValueError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 15], dtype=torch.int32), ValueError),
    "recurrence_bias": (torch.zeros(71), ValueError),
    "input_bias": (torch.zeros(72, dtype=torch.int64), TypeError),
    "z": (torch.zeros(15, 72, dtype=torch.int32), TypeError),
    "checkpoint_tokens": (torch.zeros(2, dtype=torch.int32), ValueError),
    "out": (torch.zeros(15, 72, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    with pytest.raises(error, match=f"^{name}: expected"):
        rg_lru(**(make() | {name: value}))


@pytest.mark.parametrize("num_new", [0, 9])
def test_more_tokens_than_a_step_has_are_refused(num_new):
    with pytest.raises(ValueError, match=r"^x: expected 1 to 8 new tokens a sequence"):
        rg_lru_update(**make_step(num_new=num_new))


WRONG_DRAFTS = {
    "ids below 15, got 15": [[5, 6], [7, 15], [8, 9]],
    "no block twice": [[5, 6], [7, 5], [8, 9]],
    "no block of another sequence": [[5, 6], [7, 2], [8, 9]],
}


@pytest.mark.parametrize("message", WRONG_DRAFTS)
def test_blocks_of_a_draft_that_are_not_its_own_are_refused_under_full_checks(message):
    inputs = make_step(num_new=2)
    inputs["checkpoint_indices"] = torch.tensor(WRONG_DRAFTS[message], dtype=torch.int32)
    with full_checks(), pytest.raises(ValueError, match=f"^checkpoint_indices: expected {message}"):
        rg_lru_update(**inputs)
