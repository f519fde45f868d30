"""Products with matrices as they are and packed, beside the same products in float64."""

from dataclasses import replace

import pytest
import torch

from blockstride.kernels import PackedWeight, linear, pack_weight
from blockstride.kernels.mlp import reference

# fewer outputs than a panel has, several blocks of inputs, last panels that are not full
SHAPES = [(16, 4), (50, 64), (256, 260), (1000, 77), (260, 1027)]


def make(dim, dim_out, dtype=torch.float32):
    """A packed matrix and the plain one."""
    torch.manual_seed(dim)
    weight = torch.randn(dim_out, dim, dtype=dtype)
    packed = pack_weight(weight)
    assert isinstance(packed, PackedWeight)
    return packed, weight


def in_order(x, weight, bias):
    """The product summed in float32, one term after the other."""
    total = torch.zeros(len(x), len(weight))
    for column, weights in zip(x.float().T, weight.float().T, strict=True):
        total.addcmul_(column[:, None], weights)
    return (total + bias).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 16, 17, 513])
@pytest.mark.parametrize(("dim", "dim_out"), SHAPES)
def test_every_shape_is_as_near_as_a_sum_in_float32(num_rows, dim, dim_out, dtype):
    packed, weight = make(dim, dim_out, dtype)
    x, bias = torch.randn(num_rows, dim, dtype=dtype), torch.randn(dim_out, dtype=dtype)
    exact = reference.linear(x.double(), weight.double(), bias.double())
    plain = in_order(x, weight, bias)
    torch.testing.assert_close(plain, exact.to(dtype), rtol=2e-2, atol=1e-2)
    got = linear(x, packed, bias)
    assert got.dtype == dtype
    assert got.shape == exact.shape
    if num_rows:
        ulp = torch.finfo(dtype).eps * exact.abs().amax()
        assert (got - exact).abs().amax() <= 2 * (plain - exact).abs().amax() + ulp


def test_a_packed_matrix_has_the_shape_dtype_and_values_of_the_plain_one():
    packed, weight = make(260, 1027)
    assert packed.shape == weight.shape
    assert packed.dtype is torch.float32
    assert packed.device == weight.device
    assert torch.equal(packed.to_dense(), weight)


def test_values_that_bfloat16_has_are_kept_as_such_and_give_the_same_bits():
    torch.manual_seed(0)
    weight = torch.randn(77, 300).bfloat16().float()
    packed = pack_weight(weight)
    assert isinstance(packed, PackedWeight)
    assert packed.dtype is torch.float32
    assert packed.panels.dtype is torch.bfloat16
    assert torch.equal(packed.to_dense(), weight)
    wide = replace(packed, panels=packed.panels.float())
    for num_rows in (1, 5, 40):
        x = torch.randn(num_rows, 300)
        assert torch.equal(linear(x, packed), linear(x, wide))
    weight[70, 3] = 1 + 2**-10
    again = pack_weight(weight)
    assert isinstance(again, PackedWeight)
    assert again.panels.dtype is torch.float32


def test_rows_and_matrix_may_be_slices_of_wider_tensors():
    torch.manual_seed(0)
    wide, deep = torch.randn(6, 1200), torch.randn(300, 1500)
    x, weight = wide[:, 8:1032], deep[:, 16:1040]
    for matrix in (weight, pack_weight(weight)):
        torch.testing.assert_close(linear(x, matrix), x @ weight.T, atol=1e-4, rtol=1e-5)


def test_nothing_is_written_outside_of_the_result():
    packed, weight = make(260, 1027)
    x = torch.randn(3, 260)
    kept = x.clone()
    linear(x, packed)
    assert torch.equal(x, kept)
    assert torch.equal(packed.to_dense(), weight)


def test_a_row_gives_the_same_bits_in_any_company():
    packed, _ = make(1000, 77)
    x = torch.randn(600, 1000)
    whole = linear(x, packed)
    for rows in (slice(0, 1), slice(2, 5), slice(7, 23), slice(40, 552)):
        assert torch.equal(linear(x[rows], packed), whole[rows])


def test_a_matrix_of_another_dtype_or_shape_is_refused():
    with pytest.raises(TypeError, match="weight"):
        linear(torch.zeros(2, 16), torch.zeros(4, 16, dtype=torch.float16))
    packed, _ = make(1000, 77)
    with pytest.raises(TypeError, match="weight"):
        linear(torch.zeros(2, 1000, dtype=torch.bfloat16), packed)


@pytest.mark.usefixtures("unchecked")
def test_rows_of_another_length_than_a_packed_matrix_are_refused():
    packed, _ = make(1000, 77)
    with pytest.raises(ValueError, match=r"^x: expected"):
        linear(torch.zeros(2, 999), packed)
    with pytest.raises(TypeError, match=r"^weight: expected"):
        pack_weight(torch.zeros(4, 16, dtype=torch.int8))
