from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from blockstride.kernels import gated_delta_rule, gated_delta_rule_update

NAN = float("nan")
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
BY_TOKEN = ("q", "k", "v", "g", "beta")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "no-sequence": {"lengths": ()},
    "no-token": {"lengths": (0, 0)},
    "fresh": {"initial": False},
    "given-unit-length": {"qk_l2norm": False},
    "own-scale": {"scale": 0.3},
    "one-head": {"num_heads": 1},
    "bf16": {"dtype": BF16},
    "bf16-state": {"state_dtype": BF16},
}


def make(
    lengths=(5, 0, 1, 70), num_heads=2, num_value_heads=4, key_dim=16, value_dim=24, dtype=F32,
    state_dtype=F32, initial=True, qk_l2norm=True, scale=None,
) -> dict[str, Any]:  # fmt: skip
    """The rule over sequences of these lengths, in blocks 2, 3, ... of a pool."""
    num_tokens, num_seqs = sum(lengths), len(lengths)
    wide = torch.randn(num_tokens, 2, num_heads, key_dim)
    wide = (wide if qk_l2norm else normalize(wide, dim=-1)).to(dtype)
    pool = (num_seqs + 6, num_value_heads, key_dim, value_dim)
    return {
        "q": wide[:, 0],
        "k": wide[:, 1],
        "v": torch.randn(num_tokens, num_value_heads, value_dim).to(dtype),
        "g": -torch.rand(num_tokens, num_value_heads),
        "beta": torch.rand(num_tokens, num_value_heads).to(dtype),
        "ssm_state": torch.randn(pool).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "query_start_loc": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "has_initial_state": torch.full((num_seqs,), initial),
        "qk_l2norm": qk_l2norm,
        "scale": scale,
    }


def by_definition(inputs: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Outputs, and the states after each token as well, one token at a time."""
    wide = {name: inputs[name].to(dtype) for name in (*BY_TOKEN, "ssm_state")}
    q, k, v, states = (wide[name] for name in ("q", "k", "v", "ssm_state"))
    if inputs["qk_l2norm"]:
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, k = (part.repeat_interleave(v.shape[1] // q.shape[1], 1) for part in (q, k))
    scale = inputs["scale"] or k.shape[2] ** -0.5
    out, passed = torch.zeros_like(v), v.new_zeros(len(v), *states.shape[1:])
    starts = inputs["query_start_loc"].tolist()
    for i, block in enumerate(inputs["state_indices"].tolist()):
        state = torch.zeros_like(states[0])
        if block > 0 and inputs["has_initial_state"][i]:
            state = states[block]
        for t in range(starts[i], starts[i + 1] if block > 0 else starts[i]):
            state = state * wide["g"][t].exp()[:, None, None]
            error = v[t] - torch.einsum("hk,hkv->hv", k[t], state)
            change = wide["beta"][t, :, None] * error
            state = state + k[t, :, :, None] * change[:, None]
            passed[t], out[t] = state, scale * torch.einsum("hk,hkv->hv", q[t], state)
    return out, passed


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_rule(row, assert_accurate):
    inputs = make(**row)
    (exact, exact_states), (plain, plain_states) = (
        by_definition(inputs, dtype) for dtype in (F64, inputs["q"].dtype)
    )
    before = inputs["ssm_state"].clone()
    out = gated_delta_rule(**inputs)
    assert out.dtype == inputs["v"].dtype
    assert_accurate(out, exact, plain)
    starts = inputs["query_start_loc"].tolist()
    for i, block in enumerate(inputs["state_indices"].tolist()):
        state, last = inputs["ssm_state"][block], starts[i + 1] - 1
        if starts[i] > last:
            assert torch.equal(state, before[block])
        else:
            assert_accurate(state, exact_states[last], plain_states[last].to(state.dtype))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "lengths" not in row])
def test_an_update_is_a_prompt_of_one_token(name, assert_accurate):
    row: dict[str, Any] = ROWS[name] | {"initial": True}
    inputs = make((1, 1, 1), **row)
    (exact, exact_states), (plain, plain_states) = (
        by_definition(inputs, dtype) for dtype in (F64, inputs["q"].dtype)
    )
    del inputs["query_start_loc"], inputs["has_initial_state"]
    assert_accurate(gated_delta_rule_update(**inputs), exact, plain)
    states = inputs["ssm_state"][2:5]
    assert_accurate(states, exact_states, plain_states.to(states.dtype))


def test_a_key_that_repeats_costs_no_digits(assert_accurate):
    """Each token then replaces the value of the one before it."""
    inputs = make(lengths=(128,))
    inputs["k"], inputs["q"] = (part[:1].expand(128, -1, -1) for part in (inputs["k"], inputs["q"]))
    inputs["beta"], inputs["g"] = torch.ones(128, 4), torch.zeros(128, 4)
    exact, plain = (by_definition(inputs, dtype)[0] for dtype in (F64, F32))
    assert_accurate(gated_delta_rule(**inputs), exact, plain)


@pytest.mark.parametrize("g", [0.0, -1e-6, -1600.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_decays_and_strengths_at_their_extremes_neither_overflow_nor_vanish(
    g, beta, assert_accurate
):
    inputs = make(lengths=(70,))
    inputs["g"][::2], inputs["beta"][:] = g, beta
    exact, plain = (by_definition(inputs, dtype)[0] for dtype in (F64, F32))
    assert_accurate(gated_delta_rule(**inputs), exact, plain)


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_padding_gives_zeros_and_only_named_blocks_are_written(
    state_dtype, pool_of, assert_same_bits
):
    inputs = make(lengths=(5, 0, 3, 70, 9), state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([2, 3, 0, 5, -1], dtype=torch.int32)
    inputs["checkpoint_tokens"] = torch.tensor([2, 3, 6, 20, 21, 80, 90], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([0, 7, 8, 9, -1, 10, 10], dtype=torch.int32)
    written, untouched = [2, 5, 7, 9], [0, 1, 3, 4, 6, 7, 8, 9, 10]
    inputs["ssm_state"][untouched] = NAN
    inputs["k"][5:8], inputs["v"][78:] = NAN, NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 3, 2))
    expected = pool.memory.clone()
    out = gated_delta_rule(**(inputs | {"ssm_state": pool.view}))
    assert (out[5:8] == 0).all()
    assert (out[78:] == 0).all()
    assert out.isfinite().all()
    assert pool.view[written].isfinite().all()
    pool.view[written] = inputs["ssm_state"][written]
    assert_same_bits(pool.memory, expected)


def test_an_update_passes_over_padding_and_touches_nothing_else(pool_of, assert_same_bits):
    inputs = make((1, 1, 1, 1))
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    inputs["ssm_state"][[0, 1, 2, 4, 6, 7, 8, 9]] = NAN
    inputs["k"][[1, 3]] = NAN
    del inputs["query_start_loc"], inputs["has_initial_state"]
    pool = pool_of(inputs["ssm_state"], (1, 0, 3, 2))
    expected = pool.memory.clone()
    out = gated_delta_rule_update(**(inputs | {"ssm_state": pool.view}), out=inputs["v"])
    assert out is inputs["v"]
    assert (out[[1, 3]] == 0).all()
    assert out.isfinite().all()
    pool.view[[3, 5]] = inputs["ssm_state"][[3, 5]]
    assert_same_bits(pool.memory, expected)


def test_a_state_is_not_read_without_has_initial_state():
    inputs = make(initial=False)
    expected = gated_delta_rule(**inputs)
    inputs["ssm_state"].fill_(NAN)
    assert torch.equal(gated_delta_rule(**inputs), expected)


def test_checkpoints_hold_the_states_that_the_rule_passes(assert_accurate):
    inputs = make(lengths=(3, 70))
    tokens = [3, 65, 66, 67, 72]
    (_, exact), (_, plain) = (by_definition(inputs, dtype) for dtype in (F64, F32))
    inputs["checkpoint_tokens"] = torch.tensor([*tokens, 99], dtype=torch.int32)
    inputs["checkpoint_indices"] = torch.tensor([1, 4, 5, 6, 7, 0], dtype=torch.int32)
    gated_delta_rule(**inputs)
    assert_accurate(inputs["ssm_state"][[1, 4, 5, 6, 7]], exact[tokens], plain[tokens])


@pytest.mark.parametrize("chunks", [(1, 69), (64, 6), (20, 30, 20)], ids=str)
def test_a_prompt_in_pieces_ends_as_one_call_does(chunks):
    inputs = make(lengths=(70,), initial=False)
    state = inputs["ssm_state"].clone()
    whole = gated_delta_rule(**inputs)
    outs, start = [], 0
    for i, length in enumerate(chunks):
        rows = {name: inputs[name][start : start + length] for name in BY_TOKEN}
        rows |= {
            "ssm_state": state,
            "query_start_loc": torch.tensor([0, length], dtype=torch.int32),
            "has_initial_state": torch.tensor([i > 0]),
        }
        outs.append(gated_delta_rule(**(inputs | rows)))
        start += length
    torch.testing.assert_close(torch.cat(outs), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, inputs["ssm_state"], rtol=1e-4, atol=1e-5)


BAD = {
    "q": (torch.zeros(76, 2, 17), ValueError),
    "k": (torch.zeros(76, 2, 16, dtype=BF16), TypeError),
    "v": (torch.zeros(76, 3, 24), ValueError),
    "g": (torch.zeros(76, 3), ValueError),
    "beta": (torch.zeros(76, 4, dtype=torch.int32), TypeError),
    "ssm_state": (torch.zeros(9, 4, 24, 15), ValueError),
    "state_indices": (torch.tensor([2, 3, 10, 4], dtype=torch.int32), ValueError),
    "query_start_loc": (torch.tensor([0, 5, 4, 6, 76], dtype=torch.int32), ValueError),
    "has_initial_state": (torch.zeros(3, dtype=torch.bool), ValueError),
    "checkpoint_tokens": (torch.tensor([3, 2], dtype=torch.int32), ValueError),
    "out": (torch.zeros(76, 4, 24, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs: dict[str, Any] = make() | {
        "checkpoint_tokens": torch.tensor([2, 3], dtype=torch.int32),
        "checkpoint_indices": torch.tensor([7, 8], dtype=torch.int32),
    }
    # other arguments are held to the shape of q and to the heads of v
    wanted = {"q": "k", "v": "g"}.get(name, name)
    with pytest.raises(error, match=f"^{wanted}: expected"):
        gated_delta_rule(**(inputs | {name: value}))


@pytest.mark.usefixtures("unchecked")
def test_value_heads_must_share_heads_evenly():
    with pytest.raises(ValueError, match=r"^v: expected a multiple of the 3 heads of q, got 4"):
        gated_delta_rule(**make(num_heads=3))
