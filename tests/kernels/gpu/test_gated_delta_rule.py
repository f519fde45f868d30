import pytest
import torch
from support.budget import assert_follows

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.delta import reference
from blockstride.kernels.delta.gpu import gated_delta_rule, gated_delta_rule_update
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

pytestmark = pytest.mark.usefixtures("on_device")

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    **PROMPT_ROWS,
    **DTYPE_ROWS,
    "given-unit-length": {"qk_l2norm": False},
    "a-value-head-a-head": {"num_heads": 4},
    "one-head": {"num_heads": 1},
    "by-channel": {"by_channel": True},
    "by-channel-bf16": {"by_channel": True, "dtype": BF16},
    "by-channel-given-unit-length": {"by_channel": True, "qk_l2norm": False},
    "by-channel-a-value-head-a-head": {"by_channel": True, "num_heads": 4},
    "key_dim-7": {"key_dim": 7},
    "key_dim-100": {"key_dim": 100},
    "value_dim-1": {"value_dim": 1},
    "value_dim-72": {"value_dim": 72},
    "by-channel-key_dim-7": {"by_channel": True, "key_dim": 7},
    "by-channel-key_dim-100": {"by_channel": True, "key_dim": 100},
}


def check(inputs: Arguments) -> None:
    # states are sums of products in the dtype of k
    assert_follows(gated_delta_rule, reference.gated_delta_rule, inputs, inputs["k"].dtype)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_outputs_and_states_follow_the_rule(row):
    check(delta(**row))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "lengths" not in row])
def test_an_update_is_a_prompt_of_one_token(name):
    inputs = step_of(delta, **(ROWS[name] | {"initial": True}))
    update, by_definition = gated_delta_rule_update, reference.gated_delta_rule_update
    assert_follows(update, by_definition, inputs, inputs["k"].dtype)


# the interpreter is slow; ten chunks are many enough there
@pytest.mark.parametrize("length", [63, 64, 65, 641 if INTERPRET else 4097])
def test_prompts_need_not_be_a_multiple_of_the_chunk(length):
    check(delta(lengths=(length,), num_heads=1, num_value_heads=1))


def test_a_key_that_repeats_costs_no_digits():
    """Powers of the triangle grow to 1e18 here, where its inverse has ones and zeros only."""
    inputs = delta(lengths=(128,))
    inputs["k"], inputs["q"] = (part[:1].expand(128, -1, -1) for part in (inputs["k"], inputs["q"]))
    inputs["beta"] = torch.ones_like(inputs["beta"])
    inputs["g"] = torch.zeros_like(inputs["g"])
    check(inputs)


@pytest.mark.parametrize("g", [0.0, -1e-6, -50.0, -1600.0])
@pytest.mark.parametrize("beta", [0.0, 1e-6, 1.0])
def test_decays_and_strengths_at_their_extremes_neither_overflow_nor_vanish(g, beta):
    inputs = delta(lengths=(70,), num_heads=1, num_value_heads=2)
    inputs["g"][:, 0], inputs["beta"][:] = g, beta
    check(inputs)


def test_small_decays_among_large_ones_are_as_they_should_be():
    """A running sum that large decays have made large must not swallow the small ones."""
    inputs = delta(lengths=(128,))
    inputs["g"] = torch.where(torch.rand(128, 4) < 0.3, -1600.0, -1e-3)
    check(inputs)


def test_checkpoints_hold_the_states_that_the_rule_passes():
    """A prefix resumed at token N must not get the state of N + 1, also where N ends a chunk."""
    inputs = delta(lengths=(3, 70))
    keep(inputs, *((3 + end, 4 + i) for i, end in enumerate((0, 62, 63, 64, 69))))
    check(inputs)


@pytest.mark.parametrize("gate", [-1e-6, -50.0, -1600.0, -INF])
@pytest.mark.parametrize("every", [1, 3])
def test_gates_of_channels_at_their_extremes_neither_overflow_nor_vanish(gate, every):
    """As a factor of each token, the decay of a chunk would be infinite or nothing."""
    inputs = delta(lengths=(70, 3), num_heads=1, num_value_heads=2, by_channel=True)
    inputs["g"][1::2, :, ::every] = gate
    keep(inputs, (40, 9), (63, 10), (70, 11))
    check(inputs)


@pytest.mark.parametrize("length", [15, 16, 63, 64, 65, 200])
def test_gates_of_channels_reach_across_chunks_of_any_length(length):
    inputs = delta(lengths=(length,), num_heads=1, num_value_heads=1, by_channel=True)
    inputs["g"] *= 0.1
    keep(inputs, *((end, 4 + i) for i, end in enumerate((0, length // 2, length - 1))))
    check(inputs)


@pytest.mark.parametrize("by_channel", [False, True], ids=["by-head", "by-channel"])
def test_a_draft_leaves_the_state_after_each_token_in_a_block_of_its_own(by_channel):
    """One state is not kept, one goes where its sequence was read, and one sequence is padding."""
    inputs = step_of(delta, num_new=3, by_channel=by_channel)
    written = torch.tensor([[5, 0, 2], [3, 6, 7], [8, 9, 10]], dtype=torch.int32)
    inputs["checkpoint_indices"], inputs["state_indices"][2] = written, 0
    assert_follows(gated_delta_rule_update, reference.gated_delta_rule_update, inputs)
