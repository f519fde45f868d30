"""Root mean square normalisation, with a residual addition before it or a gate fused in."""

from typing import overload

from jaxtyping import Float
from torch import Tensor

from blockstride.checks import FLOATS, expect, expect_own_memory, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: None = None,
    gate: Tensor | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor: ...


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor,
    gate: Tensor | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


def rms_norm(
    x: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, " dim"],
    eps: float,
    *,
    residual: Float[Tensor, "*batch dim"] | None = None,
    gate: Float[Tensor, "*batch dim"] | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
    out: Float[Tensor, "*batch dim"] | None = None,
) -> Float[Tensor, "*batch dim"] | tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
    """Scale every row to unit root mean square: `x / sqrt(mean(x ** 2) + eps) * weight`.

    Args:
        x: Rows to normalise; they may be slices of a wider tensor.
        weight: Gain of each channel.
        eps: Added to the mean square.
        residual: If given, `x` is added to it in place, and the sum is what is normalised. The
            sum is rounded to the dtype of `residual` first.
        gate: If given, what is normalised is multiplied by `silu(gate)` first, as in Mamba-2.
        norm_before_gate: Whether the result is multiplied by it instead, after the weight.
        group_size: If given, every so many channels are normalised by themselves.
        out: Where the result goes; it may be `x` or `gate` itself.

    Returns:
        The normalised rows in the dtype of `x` (`out`, if that was given); with a residual the
        pair of them and `residual`.

    Raises:
        ValueError: A shape or a device does not fit, or the groups do not divide the channels.
        TypeError: A dtype is not accepted.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"; Dao and Gu, "Transformers
    are SSMs", 7.1, for the gate.
    """
    given = {**locals()}
    shape, device = shape_of(x, "x"), x.device
    expect(len(shape) > 0, "x", "rows of channels", "no axis")
    expect_tensor(x, "x", shape, FLOATS, device)
    expect_tensor(weight, "weight", shape[-1:], FLOATS, device)
    if residual is not None:
        expect_tensor(residual, "residual", shape, FLOATS, device)
        expect_own_memory(residual, "residual")
    if gate is not None:
        expect_tensor(gate, "gate", shape, FLOATS, device)
    if group_size is not None and (group_size < 1 or shape[-1] % group_size):
        expect(False, "group_size", f"a divisor of {shape[-1]} channels", group_size)
    if out is not None:
        expect_tensor(out, "out", shape, (x.dtype,), device)
        expect_own_memory(out, "out")
    return implementation(rms_norm, runs_on_triton(x))(**given)
