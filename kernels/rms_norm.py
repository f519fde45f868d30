"""Root mean square normalisation, with the residual addition before it fused in."""

from typing import overload

from jaxtyping import Float
from torch import Tensor

from blockstride.kernels.checks import FLOATS, expect_tensor
from blockstride.kernels.dispatch import expect_cpu, implementation


@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: None = None, out: Tensor | None = None
) -> Tensor: ...


@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...


def rms_norm(
    x: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, " dim"],
    eps: float,
    *,
    residual: Float[Tensor, "*batch dim"] | None = None,
    out: Float[Tensor, "*batch dim"] | None = None,
) -> Float[Tensor, "*batch dim"] | tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
    """Scale every row to unit root mean square: `x / sqrt(mean(x ** 2) + eps) * weight`.

    Args:
        x: Rows to normalise; they may be slices of a wider tensor.
        weight: Gain of each channel.
        eps: Added to the mean square.
        residual: If given, `x` is added to it in place, and the sum is what is normalised. The
            sum is rounded to the dtype of `residual` first.
        out: Where the result goes; it may be `x` itself.

    Returns:
        The normalised rows in the dtype of `x` (`out`, if that was given); with a residual the
        pair of them and `residual`.

    Raises:
        ValueError: A shape or a device does not fit.
        TypeError: A dtype is not accepted.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization".
    """
    shape, device = x.shape, x.device
    expect_tensor(x, "x", shape, FLOATS, device)
    expect_tensor(weight, "weight", shape[-1:], FLOATS, device)
    if residual is not None:
        expect_tensor(residual, "residual", shape, FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", shape, (x.dtype,), device)
    expect_cpu(x, "x")
    run = implementation("rms_norm", "rms_norm", False)
    return run(x, weight, eps, residual=residual, out=out)
