from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import silu

from blockstride.kernels import (
    GELU_TANH,
    SILU,
    Gate,
    PackedWeight,
    expert_mlp,
    pack_experts,
)
from blockstride.kernels.mlp import reference
from tests.kernels.gpu.support.budget import cast, exact_and_plain

NAN = float("nan")
F32, BF16 = torch.float32, torch.bfloat16

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "no-token": {"num_tokens": 0},
    "one-token": {"num_tokens": 1},
    "many-tokens": {"num_tokens": 70},
    "one-expert": {"num_experts": 1, "top_k": 1},
    "top-1": {"top_k": 1},
    "all-experts": {"top_k": 4},
    "odd-sizes": {"hidden": 37, "inner": 23},
    "bf16": {"dtype": BF16},
    "gelu": {"gate": GELU_TANH},
    "clamped": {"gate": Gate(slope=1.7, limit=0.6, offset=1.0), "bias": True},
    "no-gate": {"gate": None},
    "no-gate-bf16": {"gate": None, "bias": True, "dtype": BF16, "inner": 70},
    "bias": {"bias": True, "num_tokens": 1},
}


def make(
    num_tokens=9, num_experts=4, top_k=2, hidden=32, inner=48, dtype=F32, gate=SILU, bias=False
) -> dict[str, Any]:
    weights, expert_ids = torch.randn(num_tokens, num_experts).softmax(-1).topk(top_k)
    rows = inner if gate is None else 2 * inner
    biases = {
        "up_bias": torch.randn(num_experts, rows).to(dtype),
        "down_bias": torch.randn(num_experts, hidden).to(dtype),
    }
    return (biases if bias else {}) | {
        "gate": gate,
        "x": torch.randn(num_tokens, hidden).to(dtype),
        "up": (torch.randn(num_experts, rows, hidden) / hidden**0.5).to(dtype),
        "down": (torch.randn(num_experts, hidden, inner) / inner**0.5).to(dtype),
        "expert_ids": expert_ids,
        "expert_weights": weights,
    }


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_are_the_weighed_sum_of_the_chosen_experts(row, assert_accurate):
    inputs = make(**row)
    out = expert_mlp(**inputs)
    assert out.dtype == inputs["x"].dtype
    exact, plain = exact_and_plain(reference.expert_mlp, inputs, out.dtype)
    assert_accurate(out, exact, plain)


@pytest.mark.parametrize("num_tokens", [1, 40])
@pytest.mark.parametrize("hidden", [64, 288], ids=["stacked", "packed"])
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_of_narrow_inputs_nothing_is_rounded_but_the_activations(num_tokens, hidden, dtype):
    """The sum over experts would otherwise carry the error of every product."""
    inputs = make(num_tokens, hidden=hidden, inner=256, dtype=dtype)
    wide = cast(inputs, torch.float64)
    exact, rounded = reference.expert_mlp(**wide), torch.zeros(num_tokens, hidden)
    for (token, k), expert in zip(
        torch.cartesian_prod(torch.arange(num_tokens), torch.arange(2)).tolist(),
        inputs["expert_ids"].flatten().tolist(),
        strict=True,
    ):
        gate, up = (wide["up"][expert] @ wide["x"][token]).float().chunk(2)
        activation = (silu(gate) * up).to(dtype).double()
        output = (wide["down"][expert] @ activation).float()
        rounded[token] += inputs["expert_weights"][token, k] * output
    packed: dict[str, Any] = {n: pack_experts(list(inputs[n])) for n in ("up", "down")}
    out = expert_mlp(**(inputs | packed))
    error = (out.double() - exact).square().mean()
    assert error <= 1.02 * (rounded.to(dtype).double() - exact).square().mean()


def test_experts_that_no_token_chose_are_not_read():
    inputs = make(top_k=1)
    inputs["expert_ids"] = torch.tensor([1, 3] * 4 + [1])[:, None]
    exact = reference.expert_mlp(**cast(inputs, torch.float64))
    inputs["up"][[0, 2]], inputs["down"][[0, 2]] = NAN, NAN
    torch.testing.assert_close(expert_mlp(**inputs), exact.float())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_token_may_choose_an_expert_twice(dtype):
    inputs = make()
    inputs["expert_ids"] = torch.full((9, 2), 2, dtype=dtype)
    exact = reference.expert_mlp(**cast(inputs, torch.float64))
    torch.testing.assert_close(expert_mlp(**inputs), exact.float())


@given(order=st.permutations(range(9)))
def test_tokens_in_another_order_give_the_same_rows(order):
    inputs = make()
    shuffled = {name: inputs[name][order] for name in ("x", "expert_ids", "expert_weights")}
    torch.testing.assert_close(expert_mlp(**(inputs | shuffled)), expert_mlp(**inputs)[order])


def test_strided_inputs_are_read_as_they_are():
    inputs = make()
    wide = torch.full((9, 50), NAN)
    wide[:, 5:37] = inputs["x"]
    transposed = inputs["down"].transpose(1, 2).contiguous().transpose(1, 2)
    out = expert_mlp(**(inputs | {"x": wide[:, 5:37], "down": transposed}))
    torch.testing.assert_close(out, expert_mlp(**inputs))


@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_packed_experts_give_what_the_stack_of_them_gives(num_tokens):
    inputs = make(num_tokens=num_tokens, hidden=260, inner=270)
    packed: dict[str, Any] = {n: pack_experts(list(inputs[n])) for n in ("up", "down")}
    assert isinstance(packed["down"], PackedWeight)
    torch.testing.assert_close(expert_mlp(**(inputs | packed)), expert_mlp(**inputs))


def test_experts_that_differ_are_refused():
    matrices = list(torch.randn(3, 8, 4))
    packed = pack_experts(matrices)
    assert isinstance(packed, PackedWeight)
    assert torch.equal(packed.to_dense(), torch.stack(matrices))
    with pytest.raises(ValueError, match=r"^matrices: expected"):
        pack_experts([])
    with pytest.raises(TypeError, match=r"^matrices\[1\]: expected"):
        pack_experts([matrices[0], matrices[1].double()])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("x", torch.zeros(9, 31), ValueError),
        ("up", torch.zeros(4, 95, 32), ValueError),
        ("down", torch.zeros(4, 32, 48, dtype=BF16), TypeError),
        ("expert_ids", torch.zeros(9, 2), TypeError),
        ("expert_weights", torch.zeros(9, 1), ValueError),
        ("gate", "silu", TypeError),
        ("up", torch.zeros(4, 48, 32), ValueError),
        ("up_bias", torch.zeros(4, 48), ValueError),
        ("down_bias", torch.zeros(3, 32), ValueError),
    ],
)
def test_a_wrong_argument_is_named(name, value, error):
    with pytest.raises(error, match=f"^{name}: expected"):
        expert_mlp(**(make() | {name: value}))
