from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from blockstride.kernels import ssd_state_update

NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BY_TOKEN = ("x", "dt", "B", "C", "z")

# a base row, then one changed factor a row
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "one-token": {"num_new": 1},
    "eight-tokens": {"num_new": 8},
    "no-sequence": {"num_seqs": 0},
    "no-D": {"D": False},
    "no-z": {"z": False},
    "no-bias": {"dt_bias": False},
    "no-softplus": {"dt_softplus": False},
    "one-group": {"num_groups": 1},
    "a-group-a-head": {"num_groups": 4},
    "head_dim-1": {"head_dim": 1},
    "d_state-5": {"d_state": 5},
    "bf16": {"dtype": BF16},
    "bf16-state": {"state_dtype": BF16},
    "fp16-state": {"state_dtype": F16},
}


def make(
    num_seqs=3, num_new=2, num_heads=4, head_dim=10, num_groups=2, d_state=16, dtype=F32,
    state_dtype=F32, D=True, z=True, dt_bias=True, dt_softplus=True,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """Inputs of a step of some tokens a sequence, in blocks 2, 3, ... of a pool."""
    tokens = (num_seqs, num_new)
    wide = torch.randn(*tokens, 2, num_heads, head_dim + 3).to(dtype)[..., :head_dim]
    inputs: dict[str, Any] = {
        "x": wide[:, :, 0],
        "dt": torch.rand(*tokens, num_heads).sub(0.3 if dt_softplus else 0).to(dtype),
        "A": -torch.rand(num_heads) - 0.1,
        "B": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "C": torch.randn(*tokens, num_groups, d_state).to(dtype),
        "ssm_state": torch.randn(num_seqs + 3, num_heads, head_dim, d_state).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "D": torch.randn(num_heads).to(dtype) if D else None,
        "z": wide[:, :, 1] if z else None,
        "dt_bias": torch.randn(num_heads) if dt_bias else None,
    }
    return inputs, dt_softplus


def recurrence(
    inputs: dict[str, Any], dt_softplus: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Outputs and states as the paper defines them, head by head, computed in `dtype`."""
    wide: dict[str, Any] = {
        name: value.to(dtype) if value is not None and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    out, states = torch.zeros_like(wide["x"]), wide["ssm_state"].clone()
    num_new, num_heads = out.shape[1:3]
    share = num_heads // wide["B"].shape[2]
    for i, block in enumerate(inputs["state_indices"].tolist()):
        for t, head in torch.cartesian_prod(torch.arange(num_new), torch.arange(num_heads)):
            if block <= 0:
                continue
            x, step = wide["x"][i, t, head], wide["dt"][i, t, head]
            step = step if wide["dt_bias"] is None else step + wide["dt_bias"][head]
            step = softplus(step) if dt_softplus else step
            B, C = wide["B"][i, t, head // share], wide["C"][i, t, head // share]
            state = torch.exp(step * wide["A"][head]) * states[block, head]
            states[block, head] = state + step * torch.outer(x, B)
            y = states[block, head] @ C
            y = y if wide["D"] is None else y + wide["D"][head] * x
            out[i, t, head] = y if wide["z"] is None else y * silu(wide["z"][i, t, head])
    return out, states


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_outputs_and_states_follow_the_recurrence(row, assert_accurate):
    inputs, dt_softplus = make(**row)
    exact = recurrence(inputs, dt_softplus, torch.float64)
    plain = recurrence(inputs, dt_softplus, F32)
    out = ssd_state_update(**inputs, dt_softplus=dt_softplus)
    assert out.dtype == inputs["x"].dtype
    assert_accurate(out, exact[0], plain[0].to(out.dtype))
    states = inputs["ssm_state"]
    assert_accurate(states, exact[1], plain[1].to(states.dtype))


def test_one_token_needs_no_axis_of_its_own(assert_same_bits):
    inputs, _ = make(num_new=1)
    state = inputs["ssm_state"].clone()
    expected = ssd_state_update(**inputs)
    flat = {name: inputs[name][:, 0] for name in BY_TOKEN} | {"ssm_state": state}
    assert_same_bits(ssd_state_update(**(inputs | flat)), expected[:, 0])
    assert_same_bits(state, inputs["ssm_state"])


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5], ids=str)
def test_every_memory_order_gives_the_same_bits(order, pool_of, assert_same_bits):
    inputs, _ = make()
    pool = pool_of(inputs["ssm_state"], order)
    out = ssd_state_update(**inputs)
    assert_same_bits(ssd_state_update(**(inputs | {"ssm_state": pool.view})), out)
    assert_same_bits(pool.view, inputs["ssm_state"])


def test_padding_of_either_id_gives_zeros_and_no_other_block_is_touched(pool_of, assert_same_bits):
    inputs, _ = make()
    inputs["state_indices"] = torch.tensor([0, 4, -1], dtype=torch.int32)
    inputs["ssm_state"][[0, 1, 2, 3, 5]] = NAN
    pool = pool_of(inputs["ssm_state"], (1, 0, 2, 3))
    expected = pool.memory.clone()
    out = torch.full((3, 2, 4, 10), NAN)
    assert ssd_state_update(**(inputs | {"ssm_state": pool.view}), out=out) is out
    assert (out[[0, 2]] == 0).all()
    assert out[1].isfinite().all()
    assert pool.view[4].isfinite().all()
    pool.view[4] = inputs["ssm_state"][4]
    assert_same_bits(pool.memory, expected)


def test_a_state_block_past_the_pool_is_refused():
    inputs, _ = make()
    inputs["state_indices"][1] = 6
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 6, got 6"):
        ssd_state_update(**inputs)


BAD = {
    "dt": (torch.zeros(3, 2, 5), ValueError),
    "A": (torch.zeros(4, dtype=torch.float64), TypeError),
    "B": (torch.zeros(3, 1, 2, 16), ValueError),
    "C": (torch.zeros(3, 2, 2, 15), ValueError),
    "ssm_state": (torch.zeros(9, 4, 10, 15), ValueError),
    "state_indices": (torch.zeros(3, dtype=torch.int64), TypeError),
    "D": (torch.zeros(5), ValueError),
    "z": (torch.zeros(3, 2, 4, 10, dtype=torch.int32), TypeError),
    "dt_bias": (torch.zeros(4, 1), ValueError),
    "out": (torch.zeros(3, 2, 4, 10, dtype=BF16), TypeError),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
    value, error = BAD[name]
    inputs, _ = make()
    with pytest.raises(error, match=f"^{name}: expected"):
        ssd_state_update(**(inputs | {name: value}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"num_new": 9}, "x: expected 1 to 8 new tokens a sequence"),
        ({"d_state": 257}, "B: expected from 1 to 256 states, got 257"),
        ({"num_groups": 3, "num_heads": 4}, "B: expected groups that divide 4 heads, got 3"),
    ],
)
def test_sizes_that_no_kernel_has_are_refused(row, message):
    inputs, _ = make(**row)
    with pytest.raises(ValueError, match=f"^{message}"):
        ssd_state_update(**inputs)
