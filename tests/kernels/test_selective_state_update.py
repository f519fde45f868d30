from typing import Any

import pytest
import torch

from blockstride.kernels import selective_scan, selective_state_update

NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BY_TOKEN = ("x", "dt", "B", "C", "z")


def make(num_seqs=3, num_new=4, dim=72, d_state=16, dtype=F32, state_dtype=F32) -> dict[str, Any]:
    """Inputs of a step of some tokens a sequence, in blocks 2, 3, ... of a pool."""
    wide = torch.randn(num_seqs, num_new, 2 * dim + 3).to(dtype)
    return {
        "x": wide[..., :dim],
        "dt": torch.rand(num_seqs, num_new, dim).to(dtype),
        "A": -torch.rand(dim, d_state) - 0.1,
        "B": torch.randn(num_seqs, num_new, d_state).to(dtype),
        "C": torch.randn(num_seqs, num_new, d_state).to(dtype),
        "ssm_state": torch.randn(num_seqs + 3, dim, d_state).to(state_dtype),
        "state_indices": torch.arange(2, num_seqs + 2, dtype=torch.int32),
        "D": torch.randn(dim),
        "z": wide[..., dim : 2 * dim],
        "dt_bias": torch.randn(dim),
    }


def as_prompts(inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a scan that goes on from the same states."""
    num_seqs, num_new = inputs["x"].shape[:2]
    flat = {name: inputs[name].flatten(0, 1) for name in BY_TOKEN}
    starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
    initial = torch.ones(num_seqs, dtype=torch.bool)
    state = inputs["ssm_state"].clone()
    prompts = {"query_start_loc": starts, "has_initial_state": initial, "ssm_state": state}
    return inputs | flat | prompts


@pytest.mark.parametrize("num_new", [1, 2, 5, 8])
@pytest.mark.parametrize(("dtype", "state_dtype"), [(F32, F32), (BF16, F32), (F32, BF16)])
def test_a_step_of_several_tokens_is_a_scan_of_short_prompts(
    num_new, dtype, state_dtype, assert_same_bits
):
    inputs = make(num_new=num_new, dtype=dtype, state_dtype=state_dtype)
    prompts = as_prompts(inputs)
    expected = selective_scan(**prompts)
    out = selective_state_update(**inputs)
    assert_same_bits(out, expected.view(out.shape))
    assert_same_bits(inputs["ssm_state"], prompts["ssm_state"])


def test_one_token_needs_no_axis_of_its_own(assert_same_bits):
    inputs = make(num_new=1)
    state = inputs["ssm_state"].clone()
    expected = selective_state_update(**inputs)
    flat = {name: inputs[name][:, 0] for name in BY_TOKEN} | {"ssm_state": state}
    assert_same_bits(selective_state_update(**(inputs | flat)), expected[:, 0])
    assert_same_bits(state, inputs["ssm_state"])


def test_padding_gives_zeros_and_the_result_goes_where_it_is_wanted(assert_same_bits):
    inputs = make()
    inputs["state_indices"] = torch.tensor([0, 4, -1], dtype=torch.int32)
    inputs["ssm_state"][[0, 1, 2, 3, 5]] = NAN
    before = inputs["ssm_state"].clone()
    out = torch.full((3, 4, 80), NAN)[..., 3:75]
    assert selective_state_update(**inputs, out=out) is out
    assert (out[[0, 2]] == 0).all()
    assert out[1].isfinite().all()
    assert inputs["ssm_state"][4].isfinite().all()
    inputs["ssm_state"][4] = before[4]
    assert_same_bits(inputs["ssm_state"], before)


@pytest.mark.parametrize("target", ["x", "z", "dt"])
def test_the_result_may_replace_an_input(target, assert_same_bits):
    inputs = make()
    state = inputs["ssm_state"].clone()
    expected = selective_state_update(**inputs)
    out = inputs[target]
    assert selective_state_update(**(inputs | {"ssm_state": state}), out=out) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("num_new", [0, 9])
def test_more_tokens_than_a_step_has_are_refused(num_new):
    with pytest.raises(ValueError, match=r"^x: expected 1 to 8 new tokens a sequence"):
        selective_state_update(**make(num_new=num_new))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["dt", "B", "C", "z", "state_indices", "out"])
def test_a_wrong_argument_is_named(name):
    wrong: dict[str, Any] = {name: torch.zeros(2, 4, 9, dtype=torch.int32)}
    with pytest.raises(ValueError, match=f"^{name}: expected shape"):
        selective_state_update(**(make() | wrong))
