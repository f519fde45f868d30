"""The decode step of Mamba-1's recurrence: a few tokens of each sequence."""

from jaxtyping import Float, Int32
from torch import Tensor

from blockstride.checks import INT32, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_new_tokens, expect_recurrence
from blockstride.kernels.common.sequences import expect_step


def selective_state_update(
    x: Float[Tensor, "num_seqs *num_new dim"],
    dt: Float[Tensor, "num_seqs *num_new dim"],
    A: Float[Tensor, "dim d_state"],
    B: Float[Tensor, "num_seqs *num_new d_state"],
    C: Float[Tensor, "num_seqs *num_new d_state"],
    ssm_state: Float[Tensor, "num_blocks dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_seqs *num_new dim"] | None = None,
    dt_bias: Float[Tensor, " dim"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_seqs *num_new dim"] | None = None,
) -> Float[Tensor, "num_seqs *num_new dim"]:
    """Advance the state of each sequence by one to eight tokens: a decode step of `selective_scan`.

    The state is read once and written once, after the last token. Within a call it is float32,
    whatever dtype `ssm_state` has.

    Args:
        x: New inputs of each sequence: `[num_seqs, num_new, dim]`, or `[num_seqs, dim]` for one
            token each. The rows may be slices of a wider tensor, as in the others.
        dt: Step sizes before bias and softplus.
        A: Decay rates, already `-exp(A_log)`.
        B: Input projection of each token.
        C: Output projection of each token.
        ssm_state: Pool of states with any strides, read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        D: Skip connection.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        out: Where the result goes; it may be `x`, `dt` or `z` itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device or the number of new tokens does not fit, or on a CPU
            a block is past the pool.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.2.
    """
    given = {**locals()}
    num_seqs, *num_new, _ = shape_of(x, "x", 2, 3)
    expect_recurrence(x, dt, A, B, C, ssm_state, D, z, dt_bias, out, by_head=False)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, x.device)
    expect_new_tokens(num_new)
    expect_step(state_indices, ssm_state)
    return implementation(selective_state_update, runs_on_triton(x))(**given)
