from itertools import accumulate, permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels import selective_scan, selective_state_update

NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "one-token": {"lengths": (1,)},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "fresh": {"initial": False},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False},
    "dim-1": {"dim": 1},
    "dim-128": {"dim": 128},
    "d_state-1": {"d_state": 1},
    "d_state-5": {"d_state": 5},
    "d_state-32-dim-64": {"d_state": 32, "dim": 64},
    "bf16": {"dtype": BF16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}


def make(
    lengths=(5, 0, 1, 9),
    dim=72,
    d_state=16,
    dtype=F32,
    state_dtype=F32,
    initial=True,
    D=True,
    z=True,
    dt_bias=True,
    dt_softplus=True,
):
    """Inputs of a scan over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens = sum(lengths)
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    num_seqs = len(lengths)
    wide = torch.randn(num_tokens, 2 * dim).to(dtype)
    inputs: dict[str, Any] = {
        "x": wide[:, :dim],
        "dt": torch.rand(num_tokens, dim).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(dim, d_state) - 0.1,
        "B": torch.randn(num_tokens, d_state).to(dtype),
        "C": torch.randn(num_tokens, d_state).to(dtype),
        "ssm_state": torch.randn(num_seqs + 3, dim, d_state).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": starts,
        "has_initial_state": torch.full((num_seqs,), initial),
        "D": torch.randn(dim).to(dtype) if D else None,
        "z": wide[:, dim:] if z else None,
        "dt_bias": torch.randn(dim) if dt_bias else None,
    }
    return inputs, dt_softplus


def recurrence(
    inputs: dict[str, Any], dt_softplus: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Outputs and states as the paper defines them, computed in `dtype`."""
    wide: dict[str, Any] = {
        name: value.to(dtype) if value is not None and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    x, dt, A, B, C, D, z = (wide[name] for name in ("x", "dt", "A", "B", "C", "D", "z"))
    out, states = torch.zeros_like(x), wide["ssm_state"].clone()
    step = dt if wide["dt_bias"] is None else dt + wide["dt_bias"]
    step = softplus(step) if dt_softplus else step
    starts = inputs["query_start_loc"].tolist()
    for i, block in enumerate(inputs["state_indices"].tolist()):
        if block <= 0 or starts[i] == starts[i + 1]:
            continue
        state = states[block] if inputs["has_initial_state"][i] else torch.zeros_like(A)
        for t in range(starts[i], starts[i + 1]):
            state = (step[t, :, None] * A).exp() * state + (step[t] * x[t])[:, None] * B[t]
            out[t] = state @ C[t]
        states[block] = state
    out = out if D is None else out + D * x
    out = out if z is None else out * silu(z)
    for i, block in enumerate(inputs["state_indices"].tolist()):
        if block <= 0:
            out[starts[i] : starts[i + 1]] = 0
    return out, states


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row, assert_accurate):
    inputs, dt_softplus = make(**row)
    exact = recurrence(inputs, dt_softplus, torch.float64)
    plain = recurrence(inputs, dt_softplus, F32)
    out = selective_scan(**inputs, dt_softplus=dt_softplus)
    assert out.dtype == inputs["x"].dtype
    assert_accurate(out, exact[0], plain[0].to(out.dtype))
    states = inputs["ssm_state"]
    assert_accurate(states, exact[1], plain[1].to(states.dtype))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "lengths" not in row])
def test_an_update_is_a_scan_of_one_token(name, assert_accurate):
    inputs, dt_softplus = make((1, 1, 1), **ROWS[name])
    inputs["has_initial_state"].fill_(True)
    exact = recurrence(inputs, dt_softplus, torch.float64)
    plain = recurrence(inputs, dt_softplus, F32)
    del inputs["query_start_loc"], inputs["has_initial_state"]
    out = selective_state_update(**inputs, dt_softplus=dt_softplus)
    assert_accurate(out, exact[0], plain[0].to(out.dtype))
    states = inputs["ssm_state"]
    assert_accurate(states, exact[1], plain[1].to(states.dtype))


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("dim", [24, 64])
def test_every_memory_order_gives_the_same_bits(order, dim, pool_of, assert_same_bits):
    inputs, _ = make(dim=dim)
    pool = pool_of(inputs["ssm_state"], order)
    out = selective_scan(**inputs)
    assert_same_bits(selective_scan(**(inputs | {"ssm_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_only_the_blocks_of_sequences_with_tokens_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs, _ = make(state_dtype=state_dtype)
    untouched = [block for block in range(7) if block not in {2, 4, 5}]
    inputs["ssm_state"][untouched] = NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2))
    expected = pool.memory.clone()
    selective_scan(**(inputs | {"ssm_state": pool.view}))
    written = pool.view[[2, 4, 5]].clone()
    assert torch.isfinite(written).all()
    pool.view[[2, 4, 5]] = inputs["ssm_state"][[2, 4, 5]]
    assert_same_bits(pool.memory, expected)


def test_a_state_is_not_read_without_has_initial_state():
    # what an earlier owner left is NaN, and 0 * NaN would be too
    inputs, _ = make(initial=False)
    clean, _ = recurrence(inputs, True, torch.float64)
    inputs["ssm_state"].fill_(NAN)
    torch.testing.assert_close(selective_scan(**inputs), clean.float())


@pytest.mark.parametrize("padding", [(0,), (-1,), (0, -1)], ids=str)
def test_padding_sequences_give_zeros_and_touch_no_block(padding, assert_same_bits):
    # two kernels disagreed on whether 0 or -1 is padding
    inputs, _ = make(lengths=(2, 3))
    inputs["state_indices"] = torch.tensor([*padding, 2, 2][:2], dtype=torch.int32)
    inputs["ssm_state"][0] = NAN
    before = inputs["ssm_state"].clone()
    exact, _ = recurrence(inputs, True, torch.float64)
    out = selective_scan(**inputs)
    torch.testing.assert_close(out, exact.float())
    kept = [
        block for block in range(5) if block not in inputs["state_indices"].tolist() or block < 1
    ]
    assert_same_bits(inputs["ssm_state"][kept], before[kept])


@pytest.mark.parametrize("chunks", [(1, 12), (6, 7), (12, 1), (4, 4, 5)], ids=str)
def test_a_prompt_in_chunks_ends_as_one_call_does(chunks):
    # the state of a chunk that ended anywhere must reach the next, in a batch of one
    inputs, _ = make(lengths=(13,), initial=False)
    by_token = ("x", "dt", "B", "C", "z")
    state = inputs["ssm_state"].clone()
    whole = selective_scan(**inputs)
    outs, start = [], 0
    for i, length in enumerate(chunks):
        rows = {name: inputs[name][start : start + length] for name in by_token}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(selective_scan(**(inputs | rows)))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state[2], inputs["ssm_state"][2], rtol=1e-6, atol=1e-6)


@given(lengths=st.lists(st.integers(0, 7), max_size=6))
def test_a_sequence_does_not_depend_on_its_batch(lengths):
    inputs, _ = make(lengths=lengths, dim=8, d_state=4)
    states = inputs["ssm_state"].clone()
    out, starts = selective_scan(**inputs), inputs["query_start_loc"].tolist()
    for i, length in enumerate(lengths):
        rows = slice(starts[i], starts[i + 1])
        alone = {name: inputs[name][rows] for name in ("x", "dt", "B", "C", "z")}
        alone |= {
            "ssm_state": states,
            "state_indices": inputs["state_indices"][i : i + 1],
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": inputs["has_initial_state"][i : i + 1],
        }
        assert torch.equal(selective_scan(**(inputs | alone)), out[rows])
    assert torch.equal(states, inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("dim", [72, 128])
def test_checkpoints_hold_the_states_that_prompts_ending_there_leave(dim, state_dtype):
    # a prefix resumed at token N must not get the state of N + 1
    inputs, _ = make(lengths=(3, 20), dim=dim, state_dtype=state_dtype)
    initial = inputs["ssm_state"].clone()
    kept = {2: 1, 3: 4, 10: 0, 22: 5}
    inputs["checkpoint_tokens"] = torch.tensor([*kept, 40], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([*kept.values(), 6], dtype=torch.int32)
    states = initial.repeat(2, 1, 1)
    selective_scan(**(inputs | {"ssm_state": states}))
    for token, block in kept.items():
        first, i = (0, 0) if token < 3 else (3, 1)
        rows = {name: inputs[name][first : token + 1] for name in ("x", "dt", "B", "C", "z")}
        rows |= {
            "ssm_state": initial.clone(),
            "state_indices": inputs["state_indices"][i : i + 1],
            "query_start_loc": torch.tensor([0, token + 1 - first], dtype=torch.int32),
            "has_initial_state": torch.tensor([True]),
            "checkpoint_tokens": None,
            "checkpoint_indices": None,
        }
        selective_scan(**(inputs | rows))
        wanted = rows["ssm_state"][i + 2] if block > 0 else initial[0]
        assert torch.equal(states[block], wanted)
    assert torch.equal(states[6], initial[1])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_checkpoints_in_padding_are_not_written(state_dtype, assert_same_bits):
    inputs, _ = make(lengths=(3, 0, 4), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([0, 2, -1], dtype=torch.int32)
    inputs["checkpoint_tokens"] = torch.tensor([1, 3, 7], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([3, 4, 5], dtype=torch.int32)
    inputs["ssm_state"].fill_(NAN)
    before = inputs["ssm_state"].clone()
    assert (selective_scan(**inputs) == 0).all()
    assert_same_bits(inputs["ssm_state"], before)


@pytest.mark.parametrize("target", ["x", "z", "dt"])
def test_the_result_may_replace_an_input(target):
    inputs, _ = make()
    state = inputs["ssm_state"].clone()
    expected = selective_scan(**inputs)
    out = inputs[target]
    returned = selective_scan(**(inputs | {"ssm_state": state}), out=out)
    assert returned is out
    assert torch.equal(out, expected)


def test_a_result_of_any_strides_is_filled():
    inputs, _ = make()
    expected = selective_scan(**(inputs | {"ssm_state": inputs["ssm_state"].clone()}))
    out = torch.full((72, 15), NAN).T
    selective_scan(**inputs, out=out)
    assert torch.equal(out, expected)


def test_states_beyond_2_to_the_31_elements_are_reached(lazy_memory):
    # a block id times a stride must not wrap at 32 bits
    stride = 2**30 + 8
    inputs, _ = make(lengths=(2,), dim=8, d_state=4)
    dense = inputs["ssm_state"].clone()
    memory = lazy_memory(2 * stride + 32, F32)
    inputs["ssm_state"] = memory.as_strided((3, 8, 4), (stride, 4, 1))
    inputs["ssm_state"][2] = dense[2]
    out = selective_scan(**inputs)
    assert torch.equal(out, selective_scan(**(inputs | {"ssm_state": dense})))
    assert torch.equal(inputs["ssm_state"][2], dense[2])


BAD = {
    "dt": (torch.zeros(15, 71), ValueError),
    "A": (torch.zeros(72, 16, dtype=torch.float64), TypeError),
    "B": (torch.zeros(15, 17), ValueError),
    "C": (torch.zeros(14, 16), ValueError),
    "ssm_state": (torch.zeros(9, 72, 15), ValueError),
    "state_indices": (torch.zeros(4, dtype=torch.int64), TypeError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 15], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "D": (torch.zeros(71), ValueError),
    "z": (torch.zeros(15, 72, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(72, 1), ValueError),
    "checkpoint_tokens": (torch.zeros(2, dtype=torch.int32), ValueError),
    "checkpoint_indices": (torch.zeros(2, dtype=torch.int32), ValueError),
    "out": (torch.zeros(15, 72, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs, _ = make()
    with pytest.raises(error, match=f"^{name}: expected"):
        selective_scan(**(inputs | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_more_states_than_fit_are_refused():
    inputs, _ = make(d_state=257)
    with pytest.raises(ValueError, match=r"^A: expected from 1 to 256 states, got 257"):
        selective_scan(**inputs)
