from typing import Any

import pytest
import torch
from support.budget import assert_within_budget, exact_and_plain

from blockstride.kernels.common.dispatch import INTERPRET
from blockstride.kernels.norm import reference
from blockstride.kernels.norm.gpu import rms_norm

DEVICE = "cpu" if INTERPRET else "cuda"
NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = [(0, 8), (1, 1), (3, 64), (5, 200), (2, 3, 70), (96,), (150, 16), (2, 5000)]


@pytest.fixture(autouse=True)
def on_device():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        yield


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_rows_have_unit_root_mean_square_times_the_weight(shape, dtype):
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1])
    out: Any = rms_norm(x, weight, 1e-6)
    assert out.dtype == dtype
    inputs = {"x": x, "weight": weight, "eps": 1e-6}
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_within_budget(out, exact, plain.to(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "residual_dtype"), [(F32, F32), (BF16, BF16), (BF16, F32)])
def test_a_residual_is_added_first_and_updated(shape, dtype, residual_dtype, assert_same_bits):
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1])
    residual = torch.randn(shape).to(residual_dtype)
    _, total = reference.rms_norm(x.float(), weight, 1e-5, residual=residual.float())
    total = total.to(residual_dtype)
    out, returned = rms_norm(x, weight, 1e-5, residual=residual)
    assert returned is residual
    assert out.dtype == dtype
    assert_same_bits(residual, total)
    again: Any = rms_norm(total, weight, 1e-5)
    assert_same_bits(out, again.to(dtype))
    inputs = {"x": total, "weight": weight, "eps": 1e-5}
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_within_budget(out, exact, plain.to(dtype))


@pytest.mark.parametrize("group_size", [None, 96, 32, 6])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("norm_before_gate", [False, True])
def test_a_gate_comes_before_or_after_the_norm_of_each_group(group_size, dtype, norm_before_gate):
    x, gate = (3 * torch.randn(2, 7, 96)).to(dtype)
    weight = torch.randn(96)
    inputs = {"x": x, "weight": weight, "eps": 1e-5, "gate": gate, "group_size": group_size}
    inputs["norm_before_gate"] = norm_before_gate
    out: Any = rms_norm(**inputs)
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_within_budget(out, exact, plain.to(dtype))


def test_slices_of_wider_tensors_are_read_and_written_in_place(assert_same_bits):
    weight = torch.randn(70)
    wide = torch.full((4, 6, 80), NAN)
    slices = wide[:, :, 5:75]
    x, residual, gate = slices[:3].copy_(torch.randn(3, 6, 70)).clone()
    expected, total = rms_norm(x, weight, 1e-6, residual=residual, gate=gate)
    rms_norm(slices[0], weight, 1e-6, residual=slices[1], gate=slices[2], out=slices[3])
    assert_same_bits(slices[3], expected)
    assert_same_bits(slices[1], total)
    assert_same_bits(slices[2], gate)
    assert wide[:, :, :5].isnan().all()
    assert wide[:, :, 75:].isnan().all()


def test_tensors_that_are_no_rows_are_updated_too(assert_same_bits):
    x, residual = torch.randn(3, 4, 5), torch.randn(5, 4, 3).permute(2, 1, 0)
    out = torch.zeros(4, 3, 5).transpose(0, 1)
    weight, total = torch.ones(5), x + residual
    returned = rms_norm(x, weight, 1e-6, residual=residual, out=out)
    assert returned[0] is out
    assert_same_bits(residual, total)
    assert_same_bits(out, rms_norm(total, weight, 1e-6))


def test_a_row_does_not_depend_on_its_batch(assert_same_bits):
    x, weight = torch.randn(40, 96), torch.randn(96)
    out = rms_norm(x, weight, 1e-6)
    for row in (0, 21, 39):
        assert_same_bits(rms_norm(x[row : row + 1], weight, 1e-6)[0], out[row])


@pytest.mark.parametrize("norm_before_gate", [False, True])
def test_the_result_may_replace_its_input(assert_same_bits, norm_before_gate):
    x, gate = torch.randn(2, 5, 200)
    weight = torch.randn(200)
    how = {"gate": gate, "norm_before_gate": norm_before_gate}
    expected = rms_norm(x, weight, 1e-6, **how)
    assert rms_norm(x.clone(), weight, 1e-6, **how, out=gate) is gate
    assert_same_bits(gate, expected)


def test_eps_bounds_the_scale_of_a_row_of_zeros():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))
    small = torch.full((1, 8), 1e-3)
    torch.testing.assert_close(rms_norm(small, torch.ones(8), 1e-6), small / 2e-6**0.5)
