"""The selective state space recurrence of Mamba-1 over whole prompts."""

from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.checks import shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_recurrence
from blockstride.kernels.common.sequences import expect_prompts


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
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
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
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is. Rows behind the last sequence are zero in the
            result.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        D: Skip connection.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        checkpoint_tokens: Tokens of this step, as rows of `x` in ascending order, after which the
            state is written to a further block, for a prompt that is to be resumed there. Those
            past the last token are padding.
        checkpoint_indices: State block for each of them, apart from all other blocks of the call;
            for an id <= 0, or in a sequence that is padding, nothing is written.
        out: Where the result goes; it may be `x`, `dt` or `z` itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape or a device does not fit; where values are readable (see `checks`),
            lengths do not cut the rows, checkpoints descend, or a block is past the pool or named
            twice.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.2.
    """
    given = {**locals()}
    num_tokens, _ = shape_of(x, "x", 2)
    expect_recurrence(x, dt, A, B, C, ssm_state, D, z, dt_bias, out, by_head=False)
    expect_prompts(
        num_tokens, ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    )  # fmt: skip
    return implementation(selective_scan, runs_on_triton(x))(**given)
