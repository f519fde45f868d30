"""The recurrence of Mamba-2 over whole prompts."""

from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.checks import expect, expect_tensor, shape_of
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_recurrence
from blockstride.kernels.common.sequences import expect_prompts

CHUNK_SIZES = (16, 32, 64, 128, 256)
MAX_HEAD_DIM = 256


def ssd_scan(
    x: Float[Tensor, "num_tokens num_heads head_dim"],
    dt: Float[Tensor, "num_tokens num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_tokens num_groups d_state"],
    C: Float[Tensor, "num_tokens num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_tokens num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
    chunk_size: int = 256,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
    out: Float[Tensor, "num_tokens num_heads head_dim"] | None = None,
) -> Float[Tensor, "num_tokens num_heads head_dim"]:
    """Run the recurrence over every token of every sequence, and keep the last state of each.

    With `step = softplus(dt + dt_bias)`, token by token and head by head:
    `state = exp(step * A) * state + step * outer(x, B)`, `y = state @ C + D * x`,
    `out = y * silu(z)`. Neighbouring heads share a group's `B` and `C`.

    Args:
        x: Inputs. Any strides, here and in `dt`, `B`, `C` and `z`.
        dt: Step size of each head before bias and softplus.
        A: Decay rate of each head, already `-exp(A_log)`.
        B: Input projection of each token and group.
        C: Output projection of each token and group.
        ssm_state: Pool of states with any strides, written in place. A state is read only where
            `has_initial_state` says that there is one. Whatever its dtype is, it is carried in
            float32 within a call.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is. Rows behind the last sequence are zero in the
            result.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        D: Skip connection of each head.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        chunk_size: Tokens of a sequence that a GPU handles as one product, counted from its first
            token of the call; 16 to 256, a power of two. It changes how sums are rounded. On a CPU
            it has no effect: there the recurrence is taken token by token.
        checkpoint_tokens: Tokens of this step, as rows of `x` in ascending order, after which the
            state is written to a further block, for a prompt that is to be resumed there. Those
            past the last token are padding.
        checkpoint_indices: State block for each of them, apart from all other blocks of the call;
            for an id <= 0, or in a sequence that is padding, nothing is written.
        out: Where the result goes; it may be `z` itself, but not `x`.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device, the number of groups or the chunk size does not fit; where
            values are readable (see `checks`), lengths do not cut the rows, checkpoints descend, or
            a block is past the pool or named twice.
        TypeError: A dtype is not accepted; `x`, `B` and `C` have the same one.

    Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", 6.
    """
    given = {**locals()}
    num_tokens, _, head_dim = shape_of(x, "x", 3)
    device = x.device
    expect_recurrence(x, dt, A, B, C, ssm_state, D, z, dt_bias, out, by_head=True)
    expect_tensor(B, "B", tuple(B.shape), (x.dtype,), device)
    expect_tensor(C, "C", tuple(C.shape), (x.dtype,), device)
    expect(1 <= head_dim <= MAX_HEAD_DIM, "x", f"heads of 1 to {MAX_HEAD_DIM}", head_dim)
    expect(chunk_size in CHUNK_SIZES, "chunk_size", f"one of {CHUNK_SIZES}", chunk_size)
    expect_prompts(
        num_tokens, ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    )  # fmt: skip
    return implementation(ssd_scan, runs_on_triton(x))(**given)
