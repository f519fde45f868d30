"""The decode step of Mamba-2's recurrence: a few tokens of each sequence."""

from jaxtyping import Float, Int32
from torch import Tensor

from blockstride.kernels.checks import FLOAT32, FLOATS, INT32, expect, expect_tensor
from blockstride.kernels.dispatch import implementation, runs_on_triton
from blockstride.kernels.recurrence import MAX_D_STATE, expect_new_tokens


def ssd_state_update(
    x: Float[Tensor, "num_seqs *num_new num_heads head_dim"],
    dt: Float[Tensor, "num_seqs *num_new num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_seqs *num_new num_groups d_state"],
    C: Float[Tensor, "num_seqs *num_new num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_seqs *num_new num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_seqs *num_new num_heads head_dim"] | None = None,
) -> Float[Tensor, "num_seqs *num_new num_heads head_dim"]:
    """Advance the state of each sequence by one to eight tokens.

    With `step = softplus(dt + dt_bias)`, token by token and head by head:
    `state = exp(step * A) * state + step * outer(x, B)`, `y = state @ C + D * x`,
    `out = y * silu(z)`. Neighbouring heads share a group's `B` and `C`. The state is read once and
    written once, after the last token. Within a call it is float32, whatever its dtype is.

    Args:
        x: New inputs of each sequence: `[num_seqs, num_new, num_heads, head_dim]`, or without the
            axis of tokens for one token each. Any strides, here and in `dt`, `B`, `C` and `z`.
        dt: Step size of each head before bias and softplus.
        A: Decay rate of each head, already `-exp(A_log)`.
        B: Input projection of each token and group.
        C: Output projection of each token and group.
        ssm_state: Pool of states with any strides, read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        D: Skip connection of each head.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        out: Where the result goes; it may be `x` or `z` itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device, the number of groups or of new tokens does not fit.
        TypeError: A dtype is not accepted.

    Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", 6 and 7.
    """
    num_seqs, *num_new, num_heads, head_dim = x.shape
    num_groups, d_state = B.shape[-2:]
    tokens, device = (num_seqs, *num_new), x.device
    shape = (*tokens, num_heads, head_dim)
    expect_tensor(x, "x", shape, FLOATS, device)
    expect_tensor(dt, "dt", (*tokens, num_heads), FLOATS, device)
    expect_tensor(A, "A", (num_heads,), FLOAT32, device)
    expect_tensor(B, "B", (*tokens, num_groups, d_state), FLOATS, device)
    expect_tensor(C, "C", (*tokens, num_groups, d_state), FLOATS, device)
    pool = (ssm_state.shape[0], num_heads, head_dim, d_state)
    expect_tensor(ssm_state, "ssm_state", pool, FLOATS, device)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, device)
    for vector, name in ((D, "D"), (dt_bias, "dt_bias")):
        if vector is not None:
            expect_tensor(vector, name, (num_heads,), FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", shape, FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", shape, (x.dtype,), device)
    expect_new_tokens(num_new)
    if num_groups == 0 or num_heads % num_groups:
        expect(False, "B", f"groups that divide {num_heads} heads", num_groups)
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "B", f"from 1 to {MAX_D_STATE} states", d_state)
    run = implementation("ssd_state_update", "ssd_state_update", runs_on_triton(x))
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
