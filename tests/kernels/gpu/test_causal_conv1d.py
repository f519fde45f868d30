from itertools import accumulate, permutations
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget
from support.pools import lazy_pool
from support.recurrences import as_prompts, convolution
from torch import Tensor

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.conv.gpu import causal_conv1d, causal_conv1d_update

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHARED = ("weight", "bias", "conv_state", "state_indices")

# a base row, then one changed factor a row; a tile has 8 tokens here
ROWS: dict[str, dict[str, Any]] = {
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


def make(
    lengths=(5, 0, 1, 19),
    dim=24,
    width=4,
    dtype=F32,
    state_dtype=F32,
    initial=True,
    bias=True,
    activation: Literal["silu"] | None = "silu",
) -> tuple[dict[str, Any], Literal["silu"] | None]:
    """Inputs of a convolution over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    inputs: dict[str, Any] = {
        "x": torch.randn(num_tokens, dim + 5)[:, :dim].to(dtype),
        "weight": torch.randn(dim, width).to(dtype),
        "bias": torch.randn(dim).to(dtype) if bias else None,
        "conv_state": torch.randn(num_seqs + 3, dim, width - 1).to(dtype).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
    }
    return inputs, activation


def assert_equals_definition(out: Tensor, inputs: dict[str, Any], activation: str | None) -> Tensor:
    """Hold outputs to float64; returns the states that the pool should have now."""
    exact, states = convolution(**inputs, activation=activation)
    plain, _ = convolution(**inputs, activation=activation, dtype=F32)
    assert_within_budget(out, exact, plain.to(out.dtype))
    return states


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_follow_the_definition_and_states_are_the_last_inputs(row, assert_same_bits):
    inputs, activation = make(**row)
    kept = inputs["conv_state"].clone()
    out = causal_conv1d(**inputs, activation=activation)
    assert out.dtype == inputs["x"].dtype
    states = assert_equals_definition(out, inputs | {"conv_state": kept}, activation)
    assert_same_bits(inputs["conv_state"], states.to(kept.dtype))


@pytest.mark.parametrize("lengths", [(1025,), (1026,)], ids=str)
def test_a_long_prompt_without_a_state_reads_nothing_before_itself(lengths):
    # tokens before the first, of a sequence that is alone, would lie outside the tensor
    inputs, activation = make(lengths=lengths, dim=8, initial=False)
    inputs["conv_state"].fill_(NAN)
    out = causal_conv1d(**inputs)
    assert_equals_definition(out, inputs, activation)


@pytest.mark.parametrize("num_new", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_an_update_among_padding_continues_as_a_longer_prompt_would(
    num_new, width, assert_same_bits
):
    # both ids that mean padding in one batch, and channels that end inside a tile
    inputs, _ = make(lengths=(num_new,) * 4, width=width, dim=34)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    inputs["conv_state"][[0, 1, 2, 4, 6]] = NAN
    exact, states = convolution(**inputs)
    plain, _ = convolution(**inputs, dtype=F32)
    x = inputs["x"].reshape(4, num_new, -1)
    out = causal_conv1d_update(x, **{name: inputs[name] for name in SHARED})
    assert_within_budget(out.flatten(0, 1), exact, plain)
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_an_update_takes_slices_and_narrow_states(dtype, assert_same_bits):
    inputs, _ = make(lengths=(2, 2, 2), dtype=dtype, state_dtype=dtype)
    starts, initial = as_prompts(3, 2)
    prompts = {"query_start_loc": starts, "has_initial_state": initial}
    exact, states = convolution(**(inputs | prompts))
    plain, _ = convolution(**(inputs | prompts), dtype=F32)
    wide = torch.full((3, 3, 40), NAN, dtype=dtype)
    wide[:, :2, :24] = inputs["x"].reshape(3, 2, 24)
    buffer = torch.full((3, 2, 50), NAN, dtype=dtype)
    out = buffer[:, :, 7:31]
    options = {name: inputs[name] for name in SHARED}
    assert causal_conv1d_update(wide[:, :2, :24], **options, out=out) is out
    assert_within_budget(out.flatten(0, 1), exact, plain.to(dtype))
    assert_same_bits(inputs["conv_state"], states.to(dtype))
    assert buffer[:, :, :7].isnan().all()
    assert buffer[:, :, 31:].isnan().all()


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    # DS and SD are two of them
    inputs, _ = make()
    pool, again = pool_of(inputs["conv_state"], order), pool_of(inputs["conv_state"], order)
    x = inputs["x"][:8].reshape(4, 2, -1)
    options = {name: inputs[name] for name in SHARED}
    dense = inputs["conv_state"].clone()
    update = causal_conv1d_update(x, **(options | {"conv_state": dense}))
    assert_same_bits(causal_conv1d_update(x, **(options | {"conv_state": again.view})), update)
    assert_same_bits(again.view, dense)
    out = causal_conv1d(**inputs)
    assert_same_bits(causal_conv1d(**(inputs | {"conv_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["conv_state"])


def test_the_order_of_the_weights_does_not_matter(assert_same_bits):
    inputs, _ = make()
    weight, fresh = inputs["weight"].T.contiguous().T, inputs["conv_state"].clone()
    by_tap = causal_conv1d(**(inputs | {"weight": weight, "conv_state": fresh}))
    assert_same_bits(by_tap, causal_conv1d(**inputs))


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_only_the_blocks_of_sequences_with_tokens_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs, _ = make(state_dtype=state_dtype)
    inputs["conv_state"][[0, 1, 3, 6]] = NAN
    pool = pool_of(inputs["conv_state"], (2, 0, 1))
    expected = pool.memory.clone()
    causal_conv1d(**(inputs | {"conv_state": pool.view}))
    assert torch.isfinite(pool.view[[2, 4, 5]]).all()
    pool.view[[2, 4, 5]] = inputs["conv_state"][[2, 4, 5]]
    assert_same_bits(pool.memory, expected)


def test_a_state_that_another_owner_left_is_not_read():
    # it is NaN, and a product with zero would be too
    inputs, activation = make(initial=False)
    inputs["conv_state"].fill_(NAN)
    out = causal_conv1d(**inputs)
    assert_equals_definition(out, inputs, activation)
    assert inputs["conv_state"][[2, 4, 5]].isfinite().all()


@pytest.mark.parametrize("indices", [(0, 2), (-1, 2), (0, -1)], ids=str)
def test_padding_sequences_give_zeros_and_touch_no_block(indices, assert_same_bits):
    inputs, activation = make(lengths=(2, 11))
    inputs["state_indices"] = torch.tensor(indices, dtype=torch.int32)
    inputs["conv_state"][[0, 4]] = NAN
    kept = inputs["conv_state"].clone()
    out = torch.full((13, 24), NAN)
    causal_conv1d(**inputs, out=out)
    states = assert_equals_definition(out, inputs | {"conv_state": kept}, activation)
    assert_same_bits(inputs["conv_state"], states.float())


@pytest.mark.parametrize("chunks", [(1, 12), (2, 2, 9), (8, 5), (4, 4, 5)], ids=str)
def test_a_prompt_in_chunks_ends_as_one_call_does(chunks, assert_same_bits):
    # a batch of one, whose later chunks must see the state of the earlier ones
    inputs, _ = make(lengths=(13,), initial=False)
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
    inputs, _ = make(lengths=lengths)
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
    inputs, _ = make(lengths=lengths, dim=4)
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
    inputs, _ = make(lengths=(5,))
    state = lazy_pool((far + 1, 24, 3), strides, F32)
    state[far] = inputs["conv_state"][2]
    indices = torch.tensor([far], dtype=torch.int32)
    out = causal_conv1d(**(inputs | {"conv_state": state, "state_indices": indices}))
    assert_same_bits(out, causal_conv1d(**inputs))
    assert_same_bits(state[far], inputs["conv_state"][2])
    x = inputs["x"][None, :4]
    options = {name: inputs[name] for name in SHARED}
    out = causal_conv1d_update(x, **(options | {"conv_state": state, "state_indices": indices}))
    assert_same_bits(out, causal_conv1d_update(x, **options))
    assert_same_bits(state[far], inputs["conv_state"][2])
