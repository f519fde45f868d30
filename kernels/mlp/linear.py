"""A linear layer, with weights packed once into the form that a CPU multiplies by fastest."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from blockstride.checks import FLOATS, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import runs_on_triton

# oneDNN chooses the tiles of a packed matrix for this many rows; they serve 1 to 2,048 rows well
PACKED_FOR_ROWS = 512
# below this a product is all overhead, of which packed matrices have more
MIN_PACKED_ELEMENTS = 2**16


def pack_weight(weight: Float[Tensor, "dim_out dim"]) -> Float[Tensor, "dim_out dim"]:
    """A matrix for `linear` in the form its device multiplies by fastest.

    A general product first copies the matrix into tiles, at every call; that is most of the cost
    of the few rows of a decode step, and a quarter of it for a prompt. On a CPU with oneDNN a
    float32 or bfloat16 matrix of some size is copied here, once. Anything else is returned as is.

    Args:
        weight: One row for each output.

    Returns:
        A matrix of the same shape, dtype and values: `weight` itself, or an opaque one (its layout
        is `torch._mkldnn`) of which only `shape`, `dtype`, `device` and `to_dense()` are of use.

    Raises:
        TypeError: The dtype is not accepted.
    """
    expect_tensor(weight, "weight", shape_of(weight, "weight", 2), FLOATS, weight.device)
    if runs_on_triton(weight) or weight.numel() < MIN_PACKED_ELEMENTS or not _can_pack(weight):
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)


def _can_pack(weight: Tensor) -> bool:
    if not weight.is_cpu or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype is torch.float32


def linear(
    x: Float[Tensor, "num_rows dim"],
    weight: Float[Tensor, "dim_out dim"],
    bias: Float[Tensor, " dim_out"] | None = None,
) -> Float[Tensor, "num_rows dim_out"]:
    """Multiply every row by a matrix: `x @ weight.T + bias`.

    Args:
        x: Rows; they may be slices of a wider tensor.
        weight: One row for each output, as it is or from `pack_weight`. With a packed one a row
            gives the same bits in any company.
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
    expect_tensor(weight, "weight", (dim_out, dim), (dtype,), device)
    if bias is not None:
        expect_tensor(bias, "bias", (dim_out,), (dtype,), device)
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return torch_linear(x, weight, bias)


def linear_in_float32(
    x: Float[Tensor, "num_rows dim"], weight: Float[Tensor, "dim_out dim"]
) -> Float[Tensor, "num_rows dim_out"]:
    """What `linear` gives on a CPU, in float32 whatever the dtype of its arguments is.

    A CPU rounds a product to the dtype of its operands. What that took away is found by a second
    product, from which the rounded one is subtracted before it is rounded in turn.
    """
    y = linear(x, weight)
    if y.dtype is torch.float32:
        return y
    rest = y.neg()
    if weight.is_mkldnn:
        rest = torch.ops.mkldnn._linear_pointwise.binary(x, rest, weight, None, "add")
    else:
        rest = torch.addmm(rest, x, weight.T)
    # a sum past the largest float16 stays infinite
    return rest.float().nan_to_num_(0.0, 0.0, 0.0).add_(y)
