import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import assert_within_budget, exact_and_plain

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.mlp import GELU_TANH, SILU, Gate, reference
from blockstride.kernels.mlp.gpu import expert_mlp

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "no-token": {"num_tokens": 0},
    "one-token": {"num_tokens": 1},
    "eight-tokens": {"num_tokens": 8},
    "many-tokens": {"num_tokens": 150},
    "enough-for-128-rows": {"num_tokens": 260, "dtype": BF16},
    "one-expert": {"num_experts": 1, "top_k": 1},
    "forty-experts": {"num_experts": 40, "top_k": 3},
    "top-1": {"top_k": 1},
    "all-experts": {"top_k": 4},
    "odd-sizes": {"hidden": 37, "inner": 23},
    "several-tiles": {"hidden": 130, "inner": 150},
    "bf16": {"dtype": BF16},
    "gelu": {"gate": GELU_TANH},
    "clamped": {"gate": Gate(slope=1.7, limit=0.6, offset=1.0), "bias": True},
    "no-gate": {"gate": None},
    "no-gate-bf16": {"gate": None, "bias": True, "dtype": BF16, "inner": 70},
    "bias": {"bias": True, "num_tokens": 1},
    "fp16": {"dtype": F16},
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def make(
    num_tokens=40, num_experts=4, top_k=2, hidden=32, inner=48, dtype=F32, gate=SILU, bias=False
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


def check(inputs: dict[str, Any]) -> None:
    """Hold the outputs to float64."""
    out = expert_mlp(**inputs)
    assert out.dtype == inputs["x"].dtype
    exact, plain = exact_and_plain(reference.expert_mlp, inputs, out.dtype)
    assert_within_budget(out, exact, plain)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_are_the_weighed_sum_of_the_chosen_experts(row):
    check(make(**row))


def test_experts_that_no_token_chose_are_not_read():
    inputs = make(top_k=1)
    inputs["expert_ids"] = torch.tensor([1, 3] * 20)[:, None]
    inputs["up"][[0, 2]], inputs["down"][[0, 2]] = NAN, NAN
    check(inputs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("num_tokens", [3, 100])
def test_all_tokens_may_choose_one_expert_and_choose_it_twice(num_tokens, dtype):
    inputs = make(num_tokens)
    inputs["expert_ids"] = torch.full((num_tokens, 2), 2, dtype=dtype)
    check(inputs)


@pytest.mark.parametrize("num_tokens", [1, 40])
@pytest.mark.parametrize("stranger", [-1, 4, 2**31 - 1])
def test_an_id_that_no_expert_has_adds_nothing(num_tokens, stranger):
    """Scratch memory is not read where nobody wrote, and nothing is read past the matrices."""
    inputs = make(num_tokens)
    inputs["expert_ids"][::2, 1] = stranger
    check(inputs)
    inputs["expert_ids"].fill_(stranger)
    assert (expert_mlp(**inputs) == 0).all()


@settings(max_examples=5, deadline=None, derandomize=True)
@given(order=st.permutations(range(9)))
def test_tokens_in_another_order_give_the_same_bits(order):
    with torch.device(DEVICE):
        inputs = make(9)
        shuffled = {name: inputs[name][order] for name in ("x", "expert_ids", "expert_weights")}
        assert torch.equal(expert_mlp(**(inputs | shuffled)), expert_mlp(**inputs)[order])


def test_strided_inputs_are_read_as_they_are(assert_same_bits):
    inputs = make()
    expected = expert_mlp(**inputs)
    wide = torch.full((40, 69), NAN)
    wide[:, 5:69:2] = inputs["x"]
    strided = {
        "x": wide[:, 5:69:2],
        "up": inputs["up"].transpose(1, 2).contiguous().transpose(1, 2),
        "down": inputs["down"].transpose(0, 2).contiguous().transpose(0, 2),
        "expert_ids": inputs["expert_ids"].T.contiguous().T,
        "expert_weights": inputs["expert_weights"].T.contiguous().T,
    }
    assert_same_bits(expert_mlp(**strided), expected)


def test_more_pairs_than_one_pass_sorts_give_the_same_bits(assert_same_bits, monkeypatch):
    inputs = make()
    expected = expert_mlp(**inputs)
    monkeypatch.setattr(sys.modules["blockstride.kernels.mlp.gpu.expert_mlp"], "SORT_BLOCK", 16)
    assert_same_bits(expert_mlp(**inputs), expected)
