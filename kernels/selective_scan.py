"""The selective state space recurrence of Mamba-1: whole prompts, and one token at a time."""

from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.kernels.checks import (
    BOOL,
    FLOAT32,
    FLOATS,
    INT32,
    expect,
    expect_query_start_loc,
    expect_tensor,
)
from blockstride.kernels.dispatch import expect_cpu, implementation

MAX_D_STATE = 256


def selective_scan(
    x: Float[Tensor, "num_tokens dim"],
    dt: Float[Tensor, "num_tokens dim"],
    A: Float[Tensor, "dim d_state"],
    B: Float[Tensor, "num_tokens d_state"],
    C: Float[Tensor, "num_tokens d_state"],
    ssm_state: Float[Tensor, "num_blocks dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_tokens dim"] | None = None,
    dt_bias: Float[Tensor, " dim"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_tokens dim"] | None = None,
) -> Float[Tensor, "num_tokens dim"]:
    """Run the recurrence over every token of every sequence, and keep the last state of each.

    With `step = softplus(dt + dt_bias)`, token by token:
    `state = exp(step * A) * state + step * x * B`, `y = C @ state + D * x`, `out = y * silu(z)`.
    Within a call the state is float32, whatever dtype `ssm_state` has.

    Args:
        x: Inputs; the rows may be slices of a wider tensor, here and in `dt`, `B`, `C` and `z`.
        dt: Step sizes before bias and softplus.
        A: Decay rates, already `-exp(A_log)`.
        B: Input projection of each token.
        C: Output projection of each token.
        ssm_state: Pool of states with any strides, written in place. A state is read only where
            `has_initial_state` says that there is one.
        state_indices: State block of each sequence. For an id <= 0 nothing is read or written,
            and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        D: Skip connection.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        out: Where the result goes; it may be `x`, `dt` or `z` itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape or a device does not fit, or `query_start_loc` does not cut the tokens.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.2.
    """
    num_tokens, num_seqs = x.shape[0], state_indices.shape[0]
    _expect_recurrence(x, dt, A, B, C, ssm_state, state_indices, num_seqs, D, z, dt_bias, out)
    expect_tensor(query_start_loc, "query_start_loc", (num_seqs + 1,), INT32, x.device)
    expect_tensor(has_initial_state, "has_initial_state", (num_seqs,), BOOL, x.device)
    expect_query_start_loc(query_start_loc, num_tokens)
    expect_cpu(x, "x")
    run = implementation("selective_scan", "selective_scan", False)
    return run(
        x,
        dt,
        A,
        B,
        C,
        ssm_state,
        state_indices,
        query_start_loc,
        has_initial_state,
        D=D,
        z=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        out=out,
    )


def selective_state_update(
    x: Float[Tensor, "num_seqs dim"],
    dt: Float[Tensor, "num_seqs dim"],
    A: Float[Tensor, "dim d_state"],
    B: Float[Tensor, "num_seqs d_state"],
    C: Float[Tensor, "num_seqs d_state"],
    ssm_state: Float[Tensor, "num_blocks dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_seqs dim"] | None = None,
    dt_bias: Float[Tensor, " dim"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_seqs dim"] | None = None,
) -> Float[Tensor, "num_seqs dim"]:
    """Advance the state of each sequence by one token: a decode step of `selective_scan`.

    Args:
        x: Input of each sequence; the rows may be slices of a wider tensor, as in the others.
        dt: Step sizes before bias and softplus.
        A: Decay rates, already `-exp(A_log)`.
        B: Input projection.
        C: Output projection.
        ssm_state: Pool of states with any strides, read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's row of the result is zero.
        D: Skip connection.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        out: Where the result goes; it may be `x`, `dt` or `z` itself.

    Returns:
        The output of each sequence in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape or a device does not fit.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.2.
    """
    num_seqs = x.shape[0]
    _expect_recurrence(x, dt, A, B, C, ssm_state, state_indices, num_seqs, D, z, dt_bias, out)
    expect_cpu(x, "x")
    run = implementation("selective_scan", "selective_state_update", False)
    return run(
        x,
        dt,
        A,
        B,
        C,
        ssm_state,
        state_indices,
        D=D,
        z=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        out=out,
    )


def _expect_recurrence(
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
    """Check what a prompt and a decode step have in common."""
    num_rows, dim = x.shape
    d_state, device = A.shape[1], x.device
    expect_tensor(x, "x", (num_rows, dim), FLOATS, device)
    expect_tensor(dt, "dt", (num_rows, dim), FLOATS, device)
    expect_tensor(A, "A", (dim, d_state), FLOAT32, device)
    expect_tensor(B, "B", (num_rows, d_state), FLOATS, device)
    expect_tensor(C, "C", (num_rows, d_state), FLOATS, device)
    expect_tensor(ssm_state, "ssm_state", (ssm_state.shape[0], dim, d_state), FLOATS, device)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, device)
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "A", f"from 1 to {MAX_D_STATE} states", d_state)
    for vector, name in ((D, "D"), (dt_bias, "dt_bias")):
        if vector is not None:
            expect_tensor(vector, name, (dim,), FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", (num_rows, dim), FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", (num_rows, dim), (x.dtype,), device)
