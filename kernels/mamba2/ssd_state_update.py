"""The decode step of Mamba-2's recurrence: a few tokens of each sequence."""

from jaxtyping import Float, Int32
from torch import Tensor

from blockstride.checks import INT32, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_new_tokens, expect_recurrence
from blockstride.kernels.common.sequences import expect_step


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
        ValueError: A shape, a device, the number of groups or of new tokens does not fit, or
            on a CPU a block is past the pool.
        TypeError: A dtype is not accepted.

    Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", 6 and 7.
    """
    given = {**locals()}
    num_seqs, *num_new, _, _ = shape_of(x, "x", 3, 4)
    expect_recurrence(x, dt, A, B, C, ssm_state, D, z, dt_bias, out, by_head=True)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, x.device)
    expect_new_tokens(num_new)
    expect_step(state_indices, ssm_state)
    return implementation(ssd_state_update, runs_on_triton(x))(**given)
