"""The product of a few rows with a matrix equals the product in float64, at every shape."""

import pytest
import torch

from blockstride.kernels import linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 40])
@pytest.mark.parametrize(("dim", "dim_out"), [(16, 4), (64, 100), (48, 33), (50, 64), (256, 260)])
def test_every_shape_is_as_near_as_torch(num_rows, dim, dim_out, dtype):
    torch.manual_seed(num_rows)
    x = torch.randn(num_rows, dim, dtype=dtype)
    weight, bias = torch.randn(dim_out, dim, dtype=dtype), torch.randn(dim_out, dtype=dtype)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    plain = torch.nn.functional.linear(x, weight, bias)
    got = linear(x, weight, bias)
    assert got.dtype == dtype
    ulp = torch.finfo(dtype).eps * exact.abs().amax() if num_rows else 0
    error = (got - exact).abs().amax() if num_rows else 0
    assert (
        error <= 2 * (plain - exact).abs().amax() + ulp if num_rows else got.shape == (0, dim_out)
    )


def test_rows_and_matrix_may_be_slices_of_wider_tensors():
    torch.manual_seed(0)
    wide, deep = torch.randn(6, 200), torch.randn(40, 96)
    x, weight = wide[:, 8:72], deep[:, 16:80]
    torch.testing.assert_close(linear(x, weight), x @ weight.T)


def test_nothing_is_written_outside_of_the_result():
    torch.manual_seed(0)
    x, weight = torch.randn(3, 64), torch.randn(36, 64)
    kept = x.clone(), weight.clone()
    linear(x, weight)
    assert torch.equal(x, kept[0])
    assert torch.equal(weight, kept[1])


def test_a_row_gives_the_same_bits_in_any_company():
    torch.manual_seed(0)
    x, weight = torch.randn(8, 64), torch.randn(36, 64)
    whole = linear(x, weight)
    assert torch.equal(linear(x[2:5], weight), whole[2:5])


def test_a_matrix_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match="weight"):
        linear(torch.zeros(2, 16), torch.zeros(4, 16, dtype=torch.float16))
