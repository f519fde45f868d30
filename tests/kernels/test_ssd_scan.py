from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels import ssd_scan

NAN = float("nan")
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
BY_TOKEN = ("x", "dt", "B", "C", "z")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "chunk-256": {"chunk_size": 256, "lengths": (300, 3)},
    "fresh": {"initial": False},
    "bare": {"options": False},
    "no-softplus": {"dt_softplus": False},
    "a-group-a-head": {"num_groups": 4},
    "bf16": {"dtype": BF16},
    "bf16-state": {"state_dtype": BF16},
}


def make(
    lengths=(5, 0, 1, 37), num_heads=4, head_dim=24, num_groups=2, d_state=16, dtype=F32,
    state_dtype=F32, initial=True, options=True, dt_softplus=True, chunk_size=16,
) -> dict[str, Any]:  # fmt: skip
    """A scan over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    wide = torch.randn(num_tokens, 2, num_heads, head_dim + 3).to(dtype)[..., :head_dim]
    pool = (num_seqs + 6, num_heads, head_dim, d_state)
    return {
        "x": wide[:, 0],
        "dt": torch.rand(num_tokens, num_heads).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(num_tokens, num_groups, d_state).to(dtype),
        "ssm_state": torch.randn(pool).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
        "D": torch.randn(num_heads).to(dtype) if options else None,
        "z": wide[:, 1] if options else None,
        "dt_bias": torch.randn(num_heads) if options and dt_softplus else None,
        "dt_softplus": dt_softplus,
        "chunk_size": chunk_size,
    }


def by_definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Outputs, and the states after each token as well, one token at a time."""
    wide: dict[str, Any] = {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    x, states = wide["x"], wide["ssm_state"]
    step = wide["dt"] if wide["dt_bias"] is None else wide["dt"] + wide["dt_bias"]
    step = softplus(step) if wide["dt_softplus"] else step
    share = x.shape[1] // wide["B"].shape[1]
    B, C = (wide[name].repeat_interleave(share, 1) for name in ("B", "C"))
    out, passed = torch.zeros_like(x), x.new_zeros(len(x), *states.shape[1:])
    starts = inputs["query_start_loc"].tolist()
    for i, block in enumerate(inputs["state_indices"].tolist()):
        state = torch.zeros_like(states[0])
        if block > 0 and inputs["has_initial_state"][i]:
            state = states[block]
        for t in range(starts[i], starts[i + 1] if block > 0 else starts[i]):
            decay = (step[t] * wide["A"]).exp()[:, None, None]
            state = decay * state + (step[t, :, None] * x[t])[:, :, None] * B[t, :, None]
            passed[t], out[t] = state, (state * C[t, :, None]).sum(-1)
            out[t] += 0 if wide["D"] is None else wide["D"][:, None] * x[t]
            out[t] *= 1 if wide["z"] is None else silu(wide["z"][t])
    return out, passed


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row, assert_accurate):
    inputs = make(**row)
    (exact, exact_states), (plain, plain_states) = (
        by_definition(inputs, dtype) for dtype in (F64, F32)
    )
    before = inputs["ssm_state"].clone()
    out = ssd_scan(**inputs)
    assert out.dtype == inputs["x"].dtype
    assert_accurate(out, exact, plain.to(out.dtype))
    starts = inputs["query_start_loc"].tolist()
    for i, block in enumerate(inputs["state_indices"].tolist()):
        state, last = inputs["ssm_state"][block], starts[i + 1] - 1
        if starts[i] > last:
            assert torch.equal(state, before[block])
        else:
            assert_accurate(state, exact_states[last], plain_states[last].to(state.dtype))


@pytest.mark.parametrize("step", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(
    step, rate, assert_accurate
):
    inputs = make(lengths=(40,), options=False, dt_softplus=False)
    inputs["dt"].fill_(step)
    inputs["A"] *= rate
    exact, plain = (by_definition(inputs, dtype)[0] for dtype in (F64, F32))
    assert_accurate(ssd_scan(**inputs), exact, plain)


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_padding_gives_zeros_and_only_named_blocks_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs = make(lengths=(5, 0, 3, 20, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    inputs["checkpoint_tokens"] = torch.tensor([2, 3, 6, 20, 21, 30, 40], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([0, 7, 8, 9, -1, 10, 10], dtype=torch.int32)
    written, untouched = [2, 5, 7, 9], [0, 1, 3, 4, 6, 7, 8, 9, 10]
    inputs["ssm_state"][untouched] = NAN
    inputs["x"][5:8], inputs["dt"][28:] = NAN, NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 3, 2))
    expected = pool.memory.clone()
    out = ssd_scan(**(inputs | {"ssm_state": pool.view}))
    assert (out[5:8] == 0).all()
    assert (out[28:] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = inputs["ssm_state"][written]
    assert_same_bits(pool.memory, expected)


def test_a_state_is_not_read_without_has_initial_state():
    inputs = make(initial=False)
    expected = ssd_scan(**inputs)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(ssd_scan(**inputs), expected)


def test_checkpoints_hold_the_states_that_the_recurrence_passes(assert_accurate):
    inputs = make(lengths=(3, 40))
    tokens = [3, 17, 18, 19, 42]
    (_, exact), (_, plain) = (by_definition(inputs, dtype) for dtype in (F64, F32))
    inputs["checkpoint_tokens"] = torch.tensor([*tokens, 99], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([1, 4, 5, 6, 7, 0], dtype=torch.int32)
    ssd_scan(**inputs)
    assert_accurate(inputs["ssm_state"][[1, 4, 5, 6, 7]], exact[tokens], plain[tokens])


@pytest.mark.parametrize("chunks", [(1, 40), (16, 25), (13, 13, 15)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(chunks):
    inputs = make(lengths=(41,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = ssd_scan(**inputs)
    outs, start = [], 0
    for i, length in enumerate(chunks):
        rows = {name: inputs[name][start : start + length] for name in BY_TOKEN}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(ssd_scan(**(inputs | rows)))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, inputs["ssm_state"], rtol=1e-4, atol=1e-4)


def test_the_result_may_replace_the_gate():
    inputs = make()
    expected = ssd_scan(**(inputs | {"ssm_state": inputs["ssm_state"].clone()}))
    assert ssd_scan(**inputs, out=inputs["z"]) is inputs["z"]
    assert torch.equal(inputs["z"], expected)


BAD = {
    "x": (torch.zeros(43, 4, 300), ValueError),
    "dt": (torch.zeros(43, 5), ValueError),
    "A": (torch.zeros(4, dtype=F64), TypeError),
    "B": (torch.zeros(43, 3, 16), ValueError),
    "C": (torch.zeros(43, 2, 16, dtype=BF16), TypeError),
    "ssm_state": (torch.zeros(9, 4, 24, 15), ValueError),
    "state_indices": (torch.tensor([2, 3, 10, 4], dtype=torch.int32), ValueError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 43], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "D": (torch.zeros(5), ValueError),
    "z": (torch.zeros(43, 4, 24, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(4, 1), ValueError),
    "chunk_size": (48, ValueError),
    "checkpoint_tokens": (torch.tensor([3, 2], dtype=torch.int32), ValueError),
    "checkpoint_indices": (None, ValueError),
    "out": (torch.zeros(43, 4, 24, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs: dict[str, Any] = make() | {
        "checkpoint_tokens": torch.tensor([2, 3], dtype=torch.int32),
        "checkpoint_indices": torch.tensor([7, 8], dtype=torch.int32),
    }
    wanted = "checkpoint_tokens" if name == "checkpoint_indices" else name
    # the groups of C are those of B, the heads of the pool those of x
    wanted = {"B": "C", "x": "ssm_state"}.get(wanted, wanted)
    with pytest.raises(error, match=f"^{wanted}: expected"):
        ssd_scan(**(inputs | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_groups_must_divide_the_heads():
    with pytest.raises(ValueError, match=r"^B: expected groups that divide 4 heads, got 3"):
        ssd_scan(**make(num_groups=3))
