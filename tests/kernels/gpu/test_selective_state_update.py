import math
from itertools import permutations
from typing import Any

import pytest
import torch
from support.budget import assert_within_budget
from support.pools import lazy_pool
from support.recurrences import as_prompts, recurrence
from torch import Tensor

from blockstride.kernels.dispatch import INTERPRET
from blockstride.kernels.gpu import selective_state_update

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BY_TOKEN = ("x", "dt", "B", "C", "z")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "two-tokens": {"num_new": 2},
    "eight-tokens": {"num_new": 8},
    "no-sequence": {"num_seqs": 0},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False},
    "dim-1": {"dim": 1},
    "dim-200": {"dim": 200},
    "d_state-1": {"d_state": 1},
    "d_state-5": {"d_state": 5},
    "d_state-128": {"d_state": 128},
    "d_state-256": {"d_state": 256},
    "bf16": {"dtype": BF16},
    "fp16": {"dtype": F16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


def make(
    num_seqs=3, num_new=1, dim=40, d_state=16, dtype=F32, state_dtype=F32,
    D=True, z=True, dt_bias=True, dt_softplus=True,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """Inputs of a step of some tokens a sequence, in blocks 2, 3, ... of a pool."""
    wide = torch.randn(num_seqs, num_new, 2 * dim + 3).to(dtype)
    inputs: dict[str, Any] = {
        "x": wide[..., :dim],
        "dt": torch.rand(num_seqs, num_new, dim).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(dim, d_state) - 0.1,
        "B": torch.randn(num_seqs, num_new, d_state).to(dtype),
        "C": torch.randn(num_seqs, num_new, d_state).to(dtype),
        "ssm_state": torch.randn(num_seqs + 3, dim, d_state).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "D": torch.randn(dim).to(dtype) if D else None,
        "z": wide[..., dim : 2 * dim] if z else None,
        "dt_bias": torch.randn(dim) if dt_bias else None,
    }
    return inputs, dt_softplus


def by_definition(
    inputs: dict[str, Any], dt_softplus: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The step as prompts that go on from their states."""
    num_seqs, num_new = inputs["x"].shape[:2]
    rows = {name: inputs[name] for name in BY_TOKEN if inputs[name] is not None}
    flat = {name: tensor.flatten(0, 1) for name, tensor in rows.items()}
    starts, initial = as_prompts(num_seqs, num_new)
    prompts = {"query_start_loc": starts, "has_initial_state": initial}
    out, states = recurrence(**(inputs | flat | prompts), dt_softplus=dt_softplus, dtype=dtype)
    return out.view(inputs["x"].shape), states


def check(inputs: dict[str, Any], dt_softplus: bool) -> None:
    """Hold outputs and states of one step to float64."""
    exact, exact_states = by_definition(inputs, dt_softplus, torch.float64)
    plain, plain_states = by_definition(inputs, dt_softplus, F32)
    out = selective_state_update(**inputs, dt_softplus=dt_softplus)
    assert out.dtype == inputs["x"].dtype
    assert_within_budget(out, exact, plain.to(out.dtype))
    states = inputs["ssm_state"]
    assert_within_budget(states, exact_states, plain_states.to(states.dtype))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row):
    check(*make(**row))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("rate", [1e-5, 1.0, 16.0, 1e4])
def test_steps_and_decay_rates_at_their_extremes_neither_overflow_nor_vanish(scale, rate):
    inputs, _ = make(num_new=3)
    # softplus makes `scale` of these
    inputs["dt"].fill_(scale if scale > 20 else math.log(math.expm1(scale)))
    inputs["dt_bias"] = None
    inputs["A"] *= rate
    check(inputs, True)


def test_several_tokens_are_as_many_steps(assert_same_bits):
    inputs, _ = make(num_new=5)
    states = inputs["ssm_state"].clone()
    steps = [
        selective_state_update(**{n: v[:, t] if n in BY_TOKEN else v for n, v in inputs.items()})
        for t in range(5)
    ]
    one_by_one, inputs["ssm_state"] = inputs["ssm_state"], states
    assert_same_bits(selective_state_update(**inputs), torch.stack(steps, dim=1))
    assert_same_bits(states, one_by_one)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    inputs, _ = make(num_new=2)
    pool = pool_of(inputs["ssm_state"], order)
    out = selective_state_update(**inputs)
    assert_same_bits(selective_state_update(**(inputs | {"ssm_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["ssm_state"])


@pytest.mark.parametrize("state_dtype", [F32, BF16], ids=str)
def test_padding_of_either_id_gives_zeros_and_no_other_block_is_touched(
    state_dtype, pool_of, assert_same_bits
):
    inputs, _ = make(num_seqs=4, num_new=2, state_dtype=state_dtype)
    inputs["state_indices"] = torch.tensor([3, 0, 5, -1], dtype=torch.int32)
    inputs["ssm_state"][[0, 1, 2, 4, 6]] = NAN
    inputs["x"][[1, 3]] = NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2))
    expected = pool.memory.clone()
    out = torch.full((4, 2, 40), NAN)
    assert selective_state_update(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[[1, 3]] == 0).all()
    assert out.isfinite().all()
    written = pool.view[[3, 5]].clone()
    assert written.isfinite().all()
    assert not torch.equal(written, inputs["ssm_state"][[3, 5]])
    pool.view[[3, 5]] = inputs["ssm_state"][[3, 5]]
    assert_same_bits(pool.memory, expected)


@pytest.mark.parametrize("target", ["x", "z", "dt"])
def test_the_result_may_replace_an_input(target, assert_same_bits):
    inputs, _ = make(num_new=2)
    state = inputs["ssm_state"].clone()
    expected = selective_state_update(**inputs)
    out = inputs[target]
    assert selective_state_update(**(inputs | {"ssm_state": state}), out=out) is out
    assert_same_bits(out, expected)


def test_a_sequence_does_not_depend_on_its_batch(assert_same_bits):
    inputs, _ = make(num_seqs=5)
    states = inputs["ssm_state"].clone()
    out = selective_state_update(**inputs)
    for i in range(5):
        alone = {n: inputs[n][i : i + 1] for n in (*BY_TOKEN, "state_indices")}
        alone["ssm_state"] = states
        assert_same_bits(selective_state_update(**(inputs | alone)), out[i : i + 1])
    assert_same_bits(states, inputs["ssm_state"])


@pytest.mark.parametrize(
    ("far", "strides"), [(65_537, (32_768, 16, 1)), (2, (16, 2**26, 1))], ids=["blocks", "channels"]
)
def test_ids_times_strides_may_pass_2_to_the_31(
    far, strides, overflow_is_an_error, assert_same_bits
):
    if not INTERPRET:
        pytest.skip("lazily mapped memory is the interpreter's")
    inputs, _ = make(num_seqs=1)
    state = lazy_pool((far + 1, 40, 16), strides, F32)
    state[far] = inputs["ssm_state"][2]
    indices = torch.tensor([far], dtype=torch.int32)
    out = selective_state_update(**(inputs | {"ssm_state": state, "state_indices": indices}))
    assert_same_bits(out, selective_state_update(**inputs))
    assert_same_bits(state[far], inputs["ssm_state"][2])
