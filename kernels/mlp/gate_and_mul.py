"""The gate of a gated layer."""

from jaxtyping import Float
from torch import Tensor

from blockstride.checks import FLOATS, expect, expect_own_memory, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.mlp.gate import SILU, Gate


def gate_and_mul(
    gate_up: Float[Tensor, "*batch twice_inner"],
    gate: Gate = SILU,
    *,
    out: Float[Tensor, "*batch inner"] | None = None,
) -> Float[Tensor, "*batch inner"]:
    """Multiply the second half of every row by an activation of the first: `silu(gate) * up`.

    Args:
        gate_up: Gate, then up projection, side by side in each row.
        gate: The activation, and what else is done to both halves.
        out: Where the result goes; it must not overlap `gate_up`.

    Returns:
        Rows of half the width, in the dtype of `gate_up`; `out`, if that was given.

    Raises:
        ValueError: The rows have an odd width, or a shape or a device does not fit.
        TypeError: A dtype is not accepted, or `gate` is none.

    Source: Shazeer, "GLU Variants Improve Transformer", 2.
    """
    given = {**locals()}
    shape = shape_of(gate_up, "gate_up")
    expect(len(shape) > 0, "gate_up", "rows of an even width", "no axis")
    *batch, twice_inner = shape
    if twice_inner % 2:
        expect(False, "gate_up", "rows of an even width", twice_inner)
    expect_tensor(gate_up, "gate_up", shape, FLOATS, gate_up.device)
    expect_gate(gate)
    if out is not None:
        half = (*batch, twice_inner // 2)
        expect_tensor(out, "out", half, (gate_up.dtype,), gate_up.device)
        expect_own_memory(out, "out")
    return implementation(gate_and_mul, runs_on_triton(gate_up))(**given)


def expect_gate(gate: Gate) -> None:
    """Raise `TypeError` unless it is one, or `ValueError` if it keeps nothing."""
    expect(isinstance(gate, Gate), "gate", "a Gate", repr(gate), TypeError)
    expect(gate.limit > 0, "gate.limit", "a positive number", gate.limit)
