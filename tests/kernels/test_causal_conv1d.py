from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blockstride.checks import full_checks
from blockstride.kernels import causal_conv1d, causal_conv1d_update
from blockstride.kernels.conv import reference
from tests.kernels.gpu.support.budget import by_reference
from tests.kernels.recurrences import BF16, F16, F32, NAN, Arguments, convolution, step_of

# a base row, then one changed factor a row
ROWS: dict[str, Arguments] = {
    "base": {},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "shorter-than-width": {"lengths": (1, 2, 0, 3)},
    "1025-tokens": {"lengths": (1025,), "dim": 8},
    "1026-tokens": {"lengths": (1026,), "dim": 8},
    "fresh": {"initial": False},
    "fresh-and-short": {"initial": False, "lengths": (1, 2)},
    "no-bias": {"bias": False},
    "no-activation": {"activation": None},
    "width-2": {"width": 2},
    "width-3": {"width": 3},
    "width-8": {"width": 8},
    "dim-1": {"dim": 1},
    "dim-128": {"dim": 128},
    "bf16": {"dtype": BF16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_follow_the_definition_and_states_are_the_last_inputs(
    row, assert_accurate, assert_same_bits
):
    inputs = convolution(**row)
    exact, states = by_reference(reference.causal_conv1d, inputs)
    plain, _ = by_reference(reference.causal_conv1d, inputs, F32)
    out = causal_conv1d(**inputs)
    assert out.dtype == inputs["x"].dtype
    assert_accurate(out, exact, plain.to(out.dtype))
    assert_same_bits(inputs["conv_state"], states.to(inputs["conv_state"].dtype))


@pytest.mark.parametrize("num_new", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", [3, 4])
def test_an_update_continues_as_a_longer_prompt_would(
    num_new, width, assert_accurate, assert_same_bits
):
    # batch of three with padding, widths 3 and 4, one and three tokens
    inputs = step_of(convolution, 4, num_new, width=width)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    exact, states = by_reference(reference.causal_conv1d_update, inputs)
    plain, _ = by_reference(reference.causal_conv1d_update, inputs, F32)
    assert_accurate(causal_conv1d_update(**inputs), exact, plain)
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("state_dtype", [F32, BF16, F16], ids=str)
def test_an_update_takes_strided_inputs_and_any_state_dtype(state_dtype, assert_same_bits):
    inputs = step_of(convolution, 3, 2, state_dtype=state_dtype)
    before = inputs["conv_state"].clone()
    dense = causal_conv1d_update(**inputs)
    states, inputs["conv_state"][:] = inputs["conv_state"].clone(), before
    wide = torch.full((3, 3, 80), NAN)
    wide[:, :2, :72] = inputs["x"]
    out = torch.full((3, 2, 99), NAN)[:, :, 7:79]
    inputs["x"] = wide[:, :2, :72]
    assert causal_conv1d_update(**inputs, out=out) is out
    assert_same_bits(out, dense)
    assert_same_bits(inputs["conv_state"], states)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("dim", [24, 64])
def test_every_memory_order_gives_the_same_bits(order, dim, pool_of, assert_same_bits):
    # DS and SD are two of them
    inputs = convolution(dim=dim)
    pool = pool_of(inputs["conv_state"], order)
    out = causal_conv1d(**inputs)
    assert_same_bits(causal_conv1d(**(inputs | {"conv_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["conv_state"])


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_order_of_the_weights_does_not_matter(dtype, assert_same_bits):
    inputs = convolution(dtype=dtype)
    weight, fresh = inputs["weight"].T.contiguous().T, inputs["conv_state"].clone()
    by_tap = causal_conv1d(**(inputs | {"weight": weight, "conv_state": fresh}))
    assert_same_bits(by_tap, causal_conv1d(**inputs))


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_only_the_blocks_of_sequences_with_tokens_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs = convolution(state_dtype=state_dtype)
    inputs["conv_state"][[0, 1, 3, 6]] = NAN
    pool = pool_of(inputs["conv_state"], (2, 0, 1))
    expected = pool.memory.clone()
    causal_conv1d(**(inputs | {"conv_state": pool.view}))
    assert torch.isfinite(pool.view[[2, 4, 5]]).all()
    pool.view[[2, 4, 5]] = inputs["conv_state"][[2, 4, 5]]
    assert_same_bits(pool.memory, expected)


def test_a_state_is_not_read_without_has_initial_state():
    # what an earlier owner left is NaN, and 0 * NaN would be too
    inputs = convolution(initial=False)
    exact, _ = by_reference(reference.causal_conv1d, inputs)
    inputs["conv_state"].fill_(NAN)
    torch.testing.assert_close(causal_conv1d(**inputs), exact.float())


@pytest.mark.parametrize("indices", [(0, 2), (-1, 2), (0, -1)], ids=str)
def test_padding_sequences_give_zeros_and_touch_no_block(indices, assert_same_bits):
    inputs = convolution(lengths=(2, 3))
    inputs["state_indices"] = torch.tensor(indices, dtype=torch.int32)
    inputs["conv_state"][[0, 4]] = NAN
    exact, states = by_reference(reference.causal_conv1d, inputs)
    torch.testing.assert_close(causal_conv1d(**inputs), exact.float())
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("lengths", [(5, 0, 19), ()], ids=str)
def test_rows_behind_the_last_sequence_are_zero_and_no_state_has_them(lengths, assert_same_bits):
    """A step of fewer tokens than it has room for."""
    inputs = convolution(lengths=lengths)
    slack = torch.full((21, inputs["x"].shape[1]), NAN)
    padded: dict[str, Any] = {**inputs, "x": torch.cat([inputs["x"], slack])}
    padded["conv_state"] = inputs["conv_state"].clone()
    out = torch.full_like(padded["x"], NAN)
    causal_conv1d(**padded, out=out)
    assert_same_bits(out[: sum(lengths)], causal_conv1d(**inputs))
    assert_same_bits(padded["conv_state"], inputs["conv_state"])
    assert (out[sum(lengths) :] == 0).all()


@given(lengths=st.lists(st.integers(0, 6), max_size=6))
def test_a_sequence_does_not_depend_on_its_batch(lengths):
    inputs = convolution(lengths=lengths, dim=8)
    states = inputs["conv_state"].clone()
    out, starts = causal_conv1d(**inputs), inputs["query_start_loc"].tolist()
    for i, length in enumerate(lengths):
        rows = slice(starts[i], starts[i + 1])
        alone = {
            "x": inputs["x"][rows],
            "conv_state": states,
            "state_indices": inputs["state_indices"][i : i + 1],
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": inputs["has_initial_state"][i : i + 1],
        }
        assert torch.equal(causal_conv1d(**(inputs | alone)), out[rows])
    assert torch.equal(states, inputs["conv_state"])


def test_states_beyond_2_to_the_31_elements_are_reached(lazy_memory, assert_same_bits):
    stride = 2**30 + 8
    inputs = convolution(lengths=(5,), dim=8)
    dense = inputs["conv_state"].clone()
    inputs["conv_state"] = lazy_memory(2 * stride + 24, F32).as_strided((3, 8, 3), (stride, 3, 1))
    inputs["conv_state"][2] = dense[2]
    out = causal_conv1d(**inputs)
    assert_same_bits(out, causal_conv1d(**(inputs | {"conv_state": dense})))
    assert_same_bits(inputs["conv_state"][2], dense[2])


BAD = {
    "x": (torch.zeros(15, 71), ValueError),
    "bias": (torch.zeros(72, 1), ValueError),
    "conv_state": (torch.zeros(7, 72, 4), ValueError),
    "state_indices": (torch.zeros(4), TypeError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 14], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(4, dtype=torch.int32), TypeError),
    "activation": ("gelu", ValueError),
    "out": (torch.zeros(15, 73), ValueError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs = convolution()
    with pytest.raises(error, match=f"^{name}: expected"):
        causal_conv1d(**(inputs | {name: value}))


@pytest.mark.parametrize("width", [1, 9])
def test_a_width_that_no_kernel_has_is_refused(width):
    inputs = convolution(width=width)
    with pytest.raises(ValueError, match=f"^weight: expected a width from 2 to 8, got {width}"):
        causal_conv1d(**inputs)


@pytest.mark.parametrize("num_new", [0, 9])
def test_an_update_of_too_many_tokens_is_refused(num_new):
    with pytest.raises(ValueError, match=f"^x: expected 1 to 8 new tokens .*, got {num_new}"):
        causal_conv1d_update(**step_of(convolution, 1, num_new))


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    ("blocks", "message"), [([2, 3, 4, 7], "ids below 7, got 7"), ([2, 3, 4, 2], "no block twice")]
)
def test_a_block_past_the_pool_or_with_two_owners_is_refused(state_dtype, blocks, message):
    inputs = convolution(state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor(blocks, dtype=torch.int32)
    refusal = f"^state_indices: expected {message}"
    with pytest.raises(ValueError, match=refusal):
        causal_conv1d(**inputs)
    step = step_of(convolution, 4, 1, state_dtype=state_dtype)
    step["state_indices"] = inputs["state_indices"]
    with full_checks(), pytest.raises(ValueError, match=refusal):
        causal_conv1d_update(**step)
    if "twice" not in message:
        with pytest.raises(ValueError, match=refusal):
            causal_conv1d_update(**step)
