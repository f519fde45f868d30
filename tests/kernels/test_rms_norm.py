from typing import Any

import pytest
import torch

from blockstride.kernels import rms_norm
from blockstride.kernels.norm import reference
from tests.kernels.gpu.support.budget import exact_and_plain

NAN = float("nan")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = [(0, 8), (1, 1), (3, 64), (5, 200), (2, 3, 70), (96,), (300, 256)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_rows_have_unit_root_mean_square_times_the_weight(shape, dtype, assert_accurate):
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1])
    out = rms_norm(x, weight, 1e-6)
    assert out.dtype == dtype
    inputs = {"x": x, "weight": weight, "eps": 1e-6}
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_accurate(out, exact, plain.to(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "residual_dtype"), [(F32, F32), (BF16, BF16), (BF16, F32)])
def test_a_residual_is_added_first_and_updated(
    shape, dtype, residual_dtype, assert_accurate, assert_same_bits
):
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1])
    residual = torch.randn(shape).to(residual_dtype)
    _, total = reference.rms_norm(x.float(), weight, 1e-5, residual=residual.float())
    total = total.to(residual_dtype)
    out, returned = rms_norm(x, weight, 1e-5, residual=residual)
    assert returned is residual
    assert out.dtype == dtype
    assert_same_bits(residual, total)
    inputs = {"x": total, "weight": weight, "eps": 1e-5}
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_accurate(out, exact, plain.to(dtype))


@pytest.mark.parametrize("shape", [(0, 96), (5, 96), (2, 7, 96)], ids=str)
@pytest.mark.parametrize("group_size", [None, 96, 32, 6])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("norm_before_gate", [False, True])
def test_a_gate_comes_before_or_after_the_norm_of_each_group(
    shape, group_size, dtype, norm_before_gate, assert_accurate
):
    x, gate = torch.randn(shape).to(dtype), torch.randn(shape).mul(3).to(dtype)
    weight = torch.randn(96)
    inputs = {"x": x, "weight": weight, "eps": 1e-5, "gate": gate, "group_size": group_size}
    inputs["norm_before_gate"] = norm_before_gate
    out = rms_norm(**inputs)
    exact, plain = exact_and_plain(reference.rms_norm, inputs)
    assert_accurate(out, exact, plain.to(dtype))


def test_a_gate_comes_after_the_residual(assert_same_bits):
    x, residual, gate, weight = *torch.randn(3, 4, 70), torch.randn(70)
    expected = rms_norm(x + residual, weight, 1e-5, gate=gate)
    total = x + residual
    out, returned = rms_norm(x, weight, 1e-5, residual=residual, gate=gate)
    assert_same_bits(returned, total)
    assert_same_bits(out, expected)


@pytest.mark.parametrize("norm_before_gate", [False, True])
@pytest.mark.parametrize("target", [0, 1], ids=["x", "gate"])
def test_a_gated_result_may_replace_an_input(target, norm_before_gate, assert_same_bits):
    inputs, weight = torch.randn(2, 4, 96), torch.randn(96)
    how = {"gate": inputs[1], "group_size": 32, "norm_before_gate": norm_before_gate}
    expected = rms_norm(inputs[0], weight, 1e-5, **how)
    rms_norm(inputs[0], weight, 1e-5, **how, out=inputs[target])
    assert_same_bits(inputs[target], expected)


def test_slices_of_wider_tensors_are_read_and_written_in_place(assert_same_bits):
    x, residual, weight = torch.randn(4, 70), torch.randn(4, 70), torch.randn(70)
    expected, total = rms_norm(x, weight, 1e-6, residual=residual.clone())
    wide = torch.full((3, 4, 80), NAN)
    wide[0, :, 5:75], wide[1, :, 5:75] = x, residual
    slices = wide[:, :, 5:75]
    rms_norm(slices[0], weight, 1e-6, residual=slices[1], out=slices[2])
    assert_same_bits(slices[2], expected)
    assert_same_bits(slices[1], total)
    assert torch.isnan(wide[:, :, :5]).all()
    assert torch.isnan(wide[:, :, 75:]).all()


def test_a_residual_of_any_strides_is_updated(assert_same_bits):
    x, residual, weight = torch.randn(3, 4, 5), torch.randn(5, 4, 3).permute(2, 1, 0), torch.ones(5)
    total = x + residual
    out, returned = rms_norm(x, weight, 1e-6, residual=residual)
    assert returned is residual
    assert_same_bits(residual, total)
    assert_same_bits(out, rms_norm(total, weight, 1e-6))


def test_the_result_may_replace_its_input(assert_same_bits):
    x, weight = torch.randn(5, 200), torch.randn(200)
    expected = rms_norm(x, weight, 1e-6)
    assert rms_norm(x, weight, 1e-6, out=x) is x
    assert_same_bits(x, expected)


def test_eps_bounds_the_scale_of_a_row_of_zeros():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))
    small = torch.full((1, 8), 1e-3)
    torch.testing.assert_close(rms_norm(small, torch.ones(8), 1e-6), small / 2e-6**0.5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("x", torch.zeros(2, 8, dtype=torch.float64), TypeError),
        ("weight", torch.zeros(7), ValueError),
        ("residual", torch.zeros(3, 8), ValueError),
        ("gate", torch.zeros(2, 7), ValueError),
        ("group_size", 3, ValueError),
        ("group_size", 0, ValueError),
        ("out", torch.zeros(2, 8, dtype=BF16), TypeError),
    ],
)
def test_a_wrong_argument_is_named(name, value, error):
    arguments: dict[str, Any] = {"x": torch.zeros(2, 8), "weight": torch.zeros(8), "eps": 1e-6}
    with pytest.raises(error, match=f"^{name}: expected"):
        rms_norm(**(arguments | {name: value}))
