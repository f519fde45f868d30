from collections.abc import Callable
from functools import partial
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget, by_reference
from support.pools import lazy_pool
from torch import Tensor

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.conv import reference
from blockstride.kernels.conv.gpu import causal_conv1d, causal_conv1d_update
from tests.kernels.recurrences import BF16, F16, F32, NAN, Arguments, as_step, convolution, step_of

DEVICE = "cpu" if INTERPRET else "cuda"
make = partial(convolution, lengths=(5, 0, 1, 19), dim=24)

# a base row, then one changed factor a row; a tile has 8 tokens here
ROWS: dict[str, Arguments] = {
    "base": {},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "shorter-than-width": {"lengths": (1, 2, 0, 3)},
    "round-a-tile": {"lengths": (7, 8, 9, 16, 17)},
    "fresh": {"initial": False},
    "fresh-and-short": {"initial": False, "lengths": (1, 2)},
    "no-bias": {"bias": False},
    "no-activation": {"activation": None},
    "width-2": {"width": 2},
    "width-3": {"width": 3},
    "width-5": {"width": 5},
    "width-8": {"width": 8},
    "dim-1": {"dim": 1},
    "dim-300": {"dim": 300},
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": F16},
    "bf16-state": {"state_dtype": BF16},
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def assert_follows(out: Tensor, definition: Callable[..., Tensor], inputs: Arguments) -> Tensor:
    """Hold outputs to float64; returns the states that the pool should have now."""
    exact, states = by_reference(definition, inputs)
    plain, _ = by_reference(definition, inputs, F32)
    assert_within_budget(out, exact, plain.to(out.dtype))
    return states


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_follow_the_definition_and_states_are_the_last_inputs(row, assert_same_bits):
    inputs = make(**row)
    kept = inputs["conv_state"].clone()
    out = causal_conv1d(**inputs)
    assert out.dtype == inputs["x"].dtype
    states = assert_follows(out, reference.causal_conv1d, inputs | {"conv_state": kept})
    assert_same_bits(inputs["conv_state"], states.to(kept.dtype))


@pytest.mark.parametrize("lengths", [(1025,), (1026,)], ids=str)
def test_a_long_prompt_without_a_state_reads_nothing_before_itself(lengths):
    # tokens before the first, of a sequence that is alone, would lie outside the tensor
    inputs = make(lengths=lengths, dim=8, initial=False)
    inputs["conv_state"].fill_(NAN)
    out = causal_conv1d(**inputs)
    assert_follows(out, reference.causal_conv1d, inputs)


@pytest.mark.parametrize("num_new", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_an_update_among_padding_continues_as_a_longer_prompt_would(
    num_new, width, assert_same_bits
):
    # both ids that mean padding in one batch, and channels that end inside a tile
    inputs = step_of(make, 4, num_new, width=width, dim=34)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    inputs["conv_state"][[0, 1, 2, 4, 6]] = NAN
    kept = inputs["conv_state"].clone()
    out = causal_conv1d_update(**inputs)
    states = assert_follows(out, reference.causal_conv1d_update, inputs | {"conv_state": kept})
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_an_update_takes_slices_and_narrow_states(dtype, assert_same_bits):
    inputs = step_of(make, 3, 2, dtype=dtype, state_dtype=dtype)
    wide = torch.full((3, 3, 40), NAN, dtype=dtype)
    wide[:, :2, :24] = inputs["x"]
    buffer = torch.full((3, 2, 50), NAN, dtype=dtype)
    out, kept = buffer[:, :, 7:31], inputs["conv_state"].clone()
    assert causal_conv1d_update(**(inputs | {"x": wide[:, :2, :24]}), out=out) is out
    states = assert_follows(out, reference.causal_conv1d_update, inputs | {"conv_state": kept})
    assert_same_bits(inputs["conv_state"], states.to(dtype))
    assert buffer[:, :, :7].isnan().all()
    assert buffer[:, :, 31:].isnan().all()


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    # DS and SD are two of them
    inputs = make()
    pool, again = pool_of(inputs["conv_state"], order), pool_of(inputs["conv_state"], order)
    step = as_step(inputs | {"x": inputs["x"][:8]}, 2)
    dense = inputs["conv_state"].clone()
    update = causal_conv1d_update(**(step | {"conv_state": dense}))
    assert_same_bits(causal_conv1d_update(**(step | {"conv_state": again.view})), update)
    assert_same_bits(again.view, dense)
    out = causal_conv1d(**inputs)
    assert_same_bits(causal_conv1d(**(inputs | {"conv_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["conv_state"])


def test_the_order_of_the_weights_does_not_matter(assert_same_bits):
    inputs = make()
    weight, fresh = inputs["weight"].T.contiguous().T, inputs["conv_state"].clone()
    by_tap = causal_conv1d(**(inputs | {"weight": weight, "conv_state": fresh}))
    assert_same_bits(by_tap, causal_conv1d(**inputs))


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_only_the_blocks_of_sequences_with_tokens_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs = make(state_dtype=state_dtype)
    inputs["conv_state"][[0, 1, 3, 6]] = NAN
    pool = pool_of(inputs["conv_state"], (2, 0, 1))
    expected = pool.memory.clone()
    causal_conv1d(**(inputs | {"conv_state": pool.view}))
    assert torch.isfinite(pool.view[[2, 4, 5]]).all()
    pool.view[[2, 4, 5]] = inputs["conv_state"][[2, 4, 5]]
    assert_same_bits(pool.memory, expected)


def test_a_state_that_another_owner_left_is_not_read():
    # it is NaN, and a product with zero would be too
    inputs = make(initial=False)
    inputs["conv_state"].fill_(NAN)
    out = causal_conv1d(**inputs)
    assert_follows(out, reference.causal_conv1d, inputs)
    assert inputs["conv_state"][[2, 4, 5]].isfinite().all()


@pytest.mark.parametrize("indices", [(0, 2), (-1, 2), (0, -1)], ids=str)
def test_padding_sequences_give_zeros_and_touch_no_block(indices, assert_same_bits):
    inputs = make(lengths=(2, 11))
    inputs["state_indices"] = torch.tensor(indices, dtype=torch.int32)
    inputs["conv_state"][[0, 4]] = NAN
    kept = inputs["conv_state"].clone()
    out = torch.full((13, 24), NAN)
    causal_conv1d(**inputs, out=out)
    states = assert_follows(out, reference.causal_conv1d, inputs | {"conv_state": kept})
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("chunks", [(1, 12), (2, 2, 9), (8, 5), (4, 4, 5)], ids=str)
def test_a_prompt_in_chunks_ends_as_one_call_does(chunks, assert_same_bits):
    # a batch of one, whose later chunks must see the state of the earlier ones
    inputs = make(lengths=(13,), initial=False)
    state = inputs["conv_state"].clone()
    whole = causal_conv1d(**inputs)
    outs, start = [], 0
    for i, length in enumerate(chunks):
        part = {
            "x": inputs["x"][start : start + length],
            "conv_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(causal_conv1d(**(inputs | part)))
        start += length
    assert_same_bits(torch.cat(outs), whole)
    assert_same_bits(state, inputs["conv_state"])


@pytest.mark.parametrize("lengths", [(5, 0, 19), ()], ids=str)
def test_rows_behind_the_last_sequence_are_zero_and_no_state_has_them(lengths, assert_same_bits):
    """A step of fewer tokens than it has room for."""
    inputs = make(lengths=lengths)
    slack = torch.full((21, inputs["x"].shape[1]), NAN)
    padded = inputs | {"x": torch.cat([inputs["x"], slack])}
    padded["conv_state"] = inputs["conv_state"].clone()
    out = torch.full_like(padded["x"], NAN)
    causal_conv1d(**padded, out=out)
    assert_same_bits(out[: sum(lengths)], causal_conv1d(**inputs))
    assert_same_bits(padded["conv_state"], inputs["conv_state"])
    assert (out[sum(lengths) :] == 0).all()


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(0, 20), max_size=5))
def test_a_sequence_does_not_depend_on_its_batch(lengths):
    inputs = make(lengths=lengths, dim=4)
    states = inputs["conv_state"].clone()
    out, starts = causal_conv1d(**inputs), inputs["query_start_loc"].tolist()
    for i, length in enumerate(lengths):
        rows = slice(starts[i], starts[i + 1])
        alone = {
            "x": inputs["x"][rows],
            "conv_state": states,
            "state_indices": inputs["state_indices"][i : i + 1],
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32, device=DEVICE),
            "has_initial_state": inputs["has_initial_state"][i : i + 1],
        }
        assert torch.equal(causal_conv1d(**(inputs | alone)), out[rows])
    assert torch.equal(states, inputs["conv_state"])


@pytest.mark.parametrize(
    ("far", "strides"), [(65_537, (32_768, 1, 24)), (2, (3, 2**27, 1))], ids=["blocks", "channels"]
)
def test_ids_times_strides_may_pass_2_to_the_31(
    far, strides, overflow_is_an_error, assert_same_bits
):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    inputs = make(lengths=(5,))
    state = lazy_pool((far + 1, 24, 3), strides, F32)
    state[far] = inputs["conv_state"][2]
    moved = {"conv_state": state, "state_indices": torch.tensor([far], dtype=torch.int32)}
    out = causal_conv1d(**(inputs | moved))
    assert_same_bits(out, causal_conv1d(**inputs))
    assert_same_bits(state[far], inputs["conv_state"][2])
    step = as_step(inputs | {"x": inputs["x"][:4]}, 4)
    out = causal_conv1d_update(**(step | moved))
    assert_same_bits(out, causal_conv1d_update(**step))
    assert_same_bits(state[far], inputs["conv_state"][2])
