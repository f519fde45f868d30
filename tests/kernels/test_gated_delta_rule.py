import re
from functools import partial

import pytest
import torch

from blockstride.kernels import gated_delta_rule, gated_delta_rule_update
from blockstride.kernels.delta import reference
from tests.kernels.recurrences import (
    BF16,
    DTYPE_ROWS,
    INF,
    PROMPT_ROWS,
    Arguments,
    delta,
    keep,
    step_of,
)

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **DTYPE_ROWS,
    "given-unit-length": {"qk_l2norm": False},
    "one-head": {"num_heads": 1},
    "by-channel": {"by_channel": True},
    "by-channel-bf16": {"by_channel": True, "dtype": BF16},
    "by-channel-given-unit-length": {"by_channel": True, "qk_l2norm": False},
    "by-channel-a-value-head-a-head": {"by_channel": True, "num_heads": 4},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_rule(row, assert_follows):
    inputs = delta(**row)
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs, inputs["q"].dtype)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "lengths" not in row])
def test_an_update_is_a_prompt_of_one_token(name, assert_follows):
    inputs = step_of(delta, **(ROWS[name] | {"initial": True}))
    update, by_definition = gated_delta_rule_update, reference.gated_delta_rule_update
    assert_follows(update, by_definition, inputs, inputs["q"].dtype)


@pytest.mark.parametrize(
    ("function", "make"),
    [(gated_delta_rule, delta), (gated_delta_rule_update, partial(step_of, delta))],
    ids=["rule", "update"],
)
def test_the_scale_is_that_of_the_keys_if_none_is_given(function, make, assert_same_bits):
    inputs = make(scale=None)
    given = inputs | {"scale": 16**-0.5, "ssm_state": inputs["ssm_state"].clone()}
    assert_same_bits(function(**inputs), function(**given))


def test_a_key_that_repeats_costs_no_digits(assert_follows):
    """Each token then replaces the value of the one before it."""
    inputs = delta(lengths=(128,))
    inputs["k"], inputs["q"] = (part[:1].expand(128, -1, -1) for part in (inputs["k"], inputs["q"]))
    inputs["beta"], inputs["g"] = torch.ones(128, 4), torch.zeros(128, 4)
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs)


@pytest.mark.parametrize("g", [0.0, -1e-6, -1600.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_decays_and_strengths_at_their_extremes_neither_overflow_nor_vanish(
    g, beta, assert_follows
):
    inputs = delta(lengths=(70,))
    inputs["g"][::2], inputs["beta"][:] = g, beta
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs)


def test_checkpoints_hold_the_states_that_the_rule_passes(assert_follows):
    inputs = delta(lengths=(3, 70))
    keep(inputs, (3, 1), (65, 4), (66, 5), (67, 6), (72, 7), (99, 0))
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs)


def test_a_draft_follows_the_rule(assert_follows):
    inputs = step_of(delta, num_new=2, by_channel=True)
    inputs["checkpoint_indices"] = torch.tensor([[6, 7], [0, 3], [-1, 8]], dtype=torch.int32)
    assert_follows(gated_delta_rule_update, reference.gated_delta_rule_update, inputs)


@pytest.mark.parametrize("gate", [-1e-6, -1.0, -1600.0, -INF])
@pytest.mark.parametrize("every", [1, 3])
def test_gates_of_channels_at_their_extremes_neither_overflow_nor_vanish(
    gate, every, assert_follows
):
    """A running sum that some gates made large, or infinite, must not swallow the others."""
    inputs = delta(lengths=(70, 3), by_channel=True)
    inputs["g"][1::2, :, ::every] = gate
    keep(inputs, (40, 9), (63, 10))
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs)


BAD = {
    "q": (torch.zeros(76, 2, 17), ValueError),
    "k": (torch.zeros(76, 2, 16, dtype=BF16), TypeError),
    "v": (torch.zeros(76, 3, 24), ValueError),
    "g": (torch.zeros(76, 3), ValueError),
    "beta": (torch.zeros(76, 4, dtype=torch.int32), TypeError),
    "ssm_state": (torch.zeros(9, 4, 24, 15), ValueError),
    "state_indices": (torch.tensor([2, 3, 16, 4], dtype=torch.int32), ValueError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 76], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "checkpoint_tokens": (torch.tensor([3, 2], dtype=torch.int32), ValueError),
    "out": (torch.zeros(76, 4, 24, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs = delta()
    keep(inputs, (2, 7), (3, 8))
    # other arguments are held to the shape of q and to the heads of v
    wanted = {"q": "k", "v": "g"}.get(name, name)
    with pytest.raises(error, match=f"^{wanted}: expected"):
        gated_delta_rule(**(inputs | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_value_heads_must_share_heads_evenly():
    with pytest.raises(ValueError, match=r"^v: expected a multiple of the 3 heads of q, got 4"):
        gated_delta_rule(**delta(num_heads=3))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("g", "got"),
    [((76, 4, 15), "(76, 4, 15)"), ((76,), "(76,)"), ((76, 4, 16, 1), "(76, 4, 16, 1)")],
)
def test_gates_are_those_of_heads_or_of_all_their_channels(g, got):
    with pytest.raises(ValueError, match=rf"^g: expected .*, got shape {re.escape(got)}"):
        gated_delta_rule(**delta() | Arguments(g=torch.zeros(g)))


WRONG_STEPS = {
    "checkpoint_indices": (torch.zeros(3, dtype=torch.int32), "shape (3, 2), got shape (3,)"),
    "g": (torch.zeros(3, 4), "3 or 4 axes, got shape (3, 4)"),
    "out": (torch.zeros(3, 4, 24), "shape (3, 2, 4, 24), got shape (3, 4, 24)"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", WRONG_STEPS)
def test_a_wrong_argument_of_a_step_is_named(name):
    value, message = WRONG_STEPS[name]
    with pytest.raises(ValueError, match=re.escape(f"{name}: expected {message}")):
        gated_delta_rule_update(**step_of(delta, num_new=2) | Arguments({name: value}))


def test_a_step_of_more_tokens_than_eight_is_refused():
    with pytest.raises(ValueError, match=r"^q: expected 1 to 8 new tokens a sequence, got \[9\]"):
        gated_delta_rule_update(**step_of(delta, num_new=9))
