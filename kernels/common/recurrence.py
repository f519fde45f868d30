"""What the recurrences of Mamba and their decode steps ask of their arguments."""

from collections.abc import Sequence

from torch import Tensor

from blockstride.checks import (
    FLOAT32,
    FLOATS,
    expect,
    expect_own_memory,
    expect_tensor,
    shape_of,
)

MAX_D_STATE = 256
# in a decode step, those included that a draft proposed
MAX_NEW_TOKENS = 8


def expect_new_tokens(num_new: Sequence[int], name: str = "x") -> None:
    """Raise unless a decode step has no axis of new tokens, or one of a length that it may have.

    Args:
        num_new: Extents of such axes.
        name: The argument that they are of.

    Raises:
        ValueError: There are more axes, or more tokens, or none.
    """
    if len(num_new) > 1 or (num_new and not 1 <= num_new[0] <= MAX_NEW_TOKENS):
        expect(False, name, f"1 to {MAX_NEW_TOKENS} new tokens a sequence", num_new)


def expect_recurrence(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    out: Tensor | None,
    *,
    by_head: bool,
) -> None:
    """Raise unless tokens, parameters and states of a recurrence fit each other.

    Shapes are those of `selective_scan`, or by heads of `ssd_scan`; the tokens are in a row, or as
    many new ones of each sequence.

    Raises:
        ValueError: A shape, a device or the number of groups does not fit, or there are more states
            than a kernel has.
        TypeError: A dtype is not accepted.
    """
    if by_head:
        *tokens, num_heads, head_dim = shape_of(x, "x", 3, 4)
        *_, num_groups, d_state = shape_of(B, "B", 3, 4)
        rows, heads, rates = (num_heads, head_dim), (num_heads,), (num_heads,)
        projection = (num_groups, d_state)
    else:
        *tokens, dim = shape_of(x, "x", 2, 3)
        _, d_state = shape_of(A, "A", 2)
        rows, heads, rates, projection = (dim,), (dim,), (dim, d_state), (d_state,)
    num_blocks, *_ = shape_of(ssm_state, "ssm_state", len(rows) + 2)
    device, pool = x.device, (num_blocks, *rows, d_state)
    expect_tensor(x, "x", (*tokens, *rows), FLOATS, device)
    expect_tensor(dt, "dt", (*tokens, *heads), FLOATS, device)
    expect_tensor(A, "A", rates, FLOAT32, device)
    expect_tensor(B, "B", (*tokens, *projection), FLOATS, device)
    expect_tensor(C, "C", (*tokens, *projection), FLOATS, device)
    expect_tensor(ssm_state, "ssm_state", pool, FLOATS, device)
    expect_own_memory(ssm_state, "ssm_state")
    for vector, name in ((D, "D"), (dt_bias, "dt_bias")):
        if vector is not None:
            expect_tensor(vector, name, heads, FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", (*tokens, *rows), FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", (*tokens, *rows), (x.dtype,), device)
        expect_own_memory(out, "out")
    if by_head and (projection[0] == 0 or heads[0] % projection[0]):
        expect(False, "B", f"groups that divide {heads[0]} heads", projection[0])
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "B" if by_head else "A", f"from 1 to {MAX_D_STATE} states", d_state)
