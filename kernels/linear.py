"""A linear layer whose weights are read once, also for the few rows of a decode step."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from blockstride.kernels.checks import FLOATS, expect_tensor
from blockstride.kernels.dispatch import implementation


def linear(
    x: Float[Tensor, "num_rows dim"],
    weight: Float[Tensor, "dim_out dim"],
    bias: Float[Tensor, " dim_out"] | None = None,
) -> Float[Tensor, "num_rows dim_out"]:
    """Multiply every row by a matrix: `x @ weight.T + bias`.

    A decode step multiplies 1 to 16 rows, where a product is bound by reading the weights and
    general matrix libraries read them at a third of the memory's rate. On a CPU a program of our
    own takes those; everything else is torch's.

    Args:
        x: Rows; they may be slices of a wider tensor.
        weight: One row for each output.
        bias: Added to every row.

    Returns:
        A new tensor in the dtype of `x`.

    Raises:
        ValueError: A shape or a device does not fit.
        TypeError: A dtype is not accepted, or differs between the arguments.
    """
    dtype, device = x.dtype, x.device
    expect_tensor(x, "x", (x.shape[0], weight.shape[-1]), FLOATS, device)
    expect_tensor(weight, "weight", (weight.shape[0], x.shape[1]), (dtype,), device)
    if bias is not None:
        expect_tensor(bias, "bias", weight.shape[:1], (dtype,), device)
    if x.is_cpu and implementation("linear", "fits", False)(x, weight):
        return implementation("linear", "linear", False)(x, weight, bias)
    return torch_linear(x, weight, bias)
