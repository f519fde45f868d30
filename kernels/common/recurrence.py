"""What the recurrences of Mamba and their decode steps ask of their arguments."""

from collections.abc import Sequence

from torch import Tensor

from blockstride.checks import (
    FLOAT32,
    FLOATS,
    INT32,
    expect,
    expect_own_memory,
    expect_tensor,
    shape_of,
)

MAX_D_STATE = 256
# in a decode step, those included that a draft proposed
MAX_NEW_TOKENS = 8


def expect_new_tokens(num_new: Sequence[int]) -> None:
    """Raise unless a decode step has no axis of new tokens, or one of a length that it may have.

    Raises:
        ValueError: There are more axes, or more tokens, or none.
    """
    if len(num_new) > 1 or (num_new and not 1 <= num_new[0] <= MAX_NEW_TOKENS):
        expect(False, "x", f"1 to {MAX_NEW_TOKENS} new tokens a sequence", num_new)


def expect_recurrence(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    num_seqs: int,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    out: Tensor | None,
) -> None:
    """Raise unless tokens, parameters and states of a recurrence fit each other.

    Args:
        x: Inputs `[*tokens, dim]`: tokens in a row, or sequences of as many new tokens each.
        dt: As in `selective_scan`, as are the others, with the tokens of `x`.
        A: `[dim, d_state]`.
        B: `[*tokens, d_state]`.
        C: `[*tokens, d_state]`.
        ssm_state: `[num_blocks, dim, d_state]`.
        state_indices: `[num_seqs]`.
        num_seqs: How many sequences there are.
        D: `[dim]`.
        z: Shaped as `x`.
        dt_bias: `[dim]`.
        out: Shaped as `x`, of its dtype.

    Raises:
        ValueError: A shape or a device does not fit, or there are more states than a kernel has.
        TypeError: A dtype is not accepted.
    """
    *tokens, dim = shape_of(x, "x", 2, 3)
    (_, d_state), device = shape_of(A, "A", 2), x.device
    num_blocks, _, _ = shape_of(ssm_state, "ssm_state", 3)
    by_channel, by_state = (*tokens, dim), (*tokens, d_state)
    expect_tensor(x, "x", by_channel, FLOATS, device)
    expect_tensor(dt, "dt", by_channel, FLOATS, device)
    expect_tensor(A, "A", (dim, d_state), FLOAT32, device)
    expect_tensor(B, "B", by_state, FLOATS, device)
    expect_tensor(C, "C", by_state, FLOATS, device)
    expect_tensor(ssm_state, "ssm_state", (num_blocks, dim, d_state), FLOATS, device)
    expect_own_memory(ssm_state, "ssm_state")
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, device)
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "A", f"from 1 to {MAX_D_STATE} states", d_state)
    for vector, name in ((D, "D"), (dt_bias, "dt_bias")):
        if vector is not None:
            expect_tensor(vector, name, (dim,), FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", by_channel, FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", by_channel, (x.dtype,), device)
        expect_own_memory(out, "out")


def expect_head_recurrence(
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
) -> None:
    """Raise unless tokens, parameters and states of a recurrence by heads (Mamba-2) fit each other.

    Args:
        x: Inputs `[*tokens, num_heads, head_dim]`.
        dt: `[*tokens, num_heads]`.
        A: `[num_heads]`.
        B: `[*tokens, num_groups, d_state]`.
        C: Shaped as `B`.
        ssm_state: `[num_blocks, num_heads, head_dim, d_state]`.
        D: `[num_heads]`.
        z: Shaped as `x`.
        dt_bias: `[num_heads]`.
        out: Shaped as `x`, of its dtype.

    Raises:
        ValueError: A shape, a device or the number of groups does not fit, or there are more states
            than a kernel has.
        TypeError: A dtype is not accepted.
    """
    *tokens, num_heads, head_dim = shape_of(x, "x", 3, 4)
    *_, num_groups, d_state = shape_of(B, "B", 3, 4)
    num_blocks, _, _, _ = shape_of(ssm_state, "ssm_state", 4)
    shape, device = (*tokens, num_heads, head_dim), x.device
    expect_tensor(x, "x", shape, FLOATS, device)
    expect_tensor(dt, "dt", (*tokens, num_heads), FLOATS, device)
    expect_tensor(A, "A", (num_heads,), FLOAT32, device)
    expect_tensor(B, "B", (*tokens, num_groups, d_state), FLOATS, device)
    expect_tensor(C, "C", (*tokens, num_groups, d_state), FLOATS, device)
    pool = (num_blocks, num_heads, head_dim, d_state)
    expect_tensor(ssm_state, "ssm_state", pool, FLOATS, device)
    expect_own_memory(ssm_state, "ssm_state")
    for vector, name in ((D, "D"), (dt_bias, "dt_bias")):
        if vector is not None:
            expect_tensor(vector, name, (num_heads,), FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", shape, FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", shape, (x.dtype,), device)
        expect_own_memory(out, "out")
    if num_groups == 0 or num_heads % num_groups:
        expect(False, "B", f"groups that divide {num_heads} heads", num_groups)
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "B", f"from 1 to {MAX_D_STATE} states", d_state)
