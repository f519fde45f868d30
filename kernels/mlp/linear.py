"""A linear layer, with weights packed once into the form that a CPU multiplies by fastest."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from blockstride.checks import FLOATS, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.mlp.packed_weight import PackedWeight


def pack_weight(
    weight: Float[Tensor, "dim_out dim"],
) -> Float[Tensor, "dim_out dim"] | PackedWeight:
    """A matrix for `linear` in the form its device multiplies by fastest.

    A general product on a CPU first copies the matrix into tiles, at every call; that is most of
    the cost of the few rows of a decode step, and a quarter of it for a prompt. Here it is copied
    once.

    Args:
        weight: One row for each output.

    Returns:
        The matrix as a `PackedWeight` on a CPU; `weight` itself elsewhere, or if it has no element.

    Raises:
        TypeError: The dtype is not accepted.
    """
    expect_tensor(weight, "weight", shape_of(weight, "weight", 2), FLOATS, weight.device)
    return PackedWeight.of((weight,)) if can_pack(weight) else weight


def can_pack(weight: Tensor) -> bool:
    """Whether products with a matrix are this project's own."""
    return not runs_on_triton(weight) and weight.numel() > 0


def dtypes_for(x: Tensor, weight: Tensor | PackedWeight) -> tuple[torch.dtype, ...]:
    """What a matrix may hold for such inputs: the same, or bfloat16 if it is packed for float32."""
    if isinstance(weight, PackedWeight) and x.dtype is torch.float32:
        return (x.dtype, torch.bfloat16)
    return (x.dtype,)


def linear(
    x: Float[Tensor, "num_rows dim"],
    weight: Float[Tensor, "dim_out dim"] | PackedWeight,
    bias: Float[Tensor, " dim_out"] | None = None,
) -> Float[Tensor, "num_rows dim_out"]:
    """Multiply every row by a matrix: `x @ weight.T + bias`.

    Args:
        x: Rows; they may be slices of a wider tensor.
        weight: One row for each output, as it is or from `pack_weight`. With a packed one a row
            gives the same bits in any company, and float32 rows may be multiplied by a bfloat16
            matrix, which is read as it is: in half the time of a float32 one if rows are few.
        bias: Added to every row.

    Returns:
        A new tensor in the dtype of `x`.

    Raises:
        ValueError: A shape or a device does not fit.
        TypeError: A dtype is not accepted, or differs between the arguments.
    """
    (num_rows, _), (dim_out, dim) = shape_of(x, "x", 2), shape_of(weight, "weight", 2)
    dtype, device = x.dtype, x.device
    expect_tensor(x, "x", (num_rows, dim), FLOATS, device)
    expect_tensor(weight, "weight", (dim_out, dim), dtypes_for(x, weight), device)
    if bias is not None:
        expect_tensor(bias, "bias", (dim_out,), (dtype,), device)
    if isinstance(weight, PackedWeight):
        return implementation(linear, False)(x, weight, bias)
    return torch_linear(x, weight, bias)
