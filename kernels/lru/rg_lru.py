"""The real-gated linear recurrent unit over whole prompts, and a few tokens at a time."""

from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.checks import (
    FLOAT32,
    FLOATS,
    INT32,
    expect_own_memory,
    expect_tensor,
    shape_of,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_new_tokens
from blockstride.kernels.common.sequences import expect_draft, expect_prompts, expect_step


def rg_lru(
    x: Float[Tensor, "num_tokens dim"],
    recurrence_gate: Float[Tensor, "num_tokens dim"],
    input_gate: Float[Tensor, "num_tokens dim"],
    A: Float[Tensor, " dim"],
    ssm_state: Float[Tensor, "num_blocks dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    recurrence_bias: Float[Tensor, " dim"] | None = None,
    input_bias: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_tokens dim"] | None = None,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
    out: Float[Tensor, "num_tokens dim"] | None = None,
) -> Float[Tensor, "num_tokens dim"]:
    """Run the unit over every token of every sequence, and keep the last state of each.

    With `r = sigmoid(recurrence_gate + recurrence_bias)`, `i = sigmoid(input_gate + input_bias)`
    and `a = exp(A * r)`, token by token and channel by channel:
    `state = a * state + sqrt(1 - a**2) * i * x`, `out = state * gelu(z)`. The first token of a
    sequence without an initial state is not weighed: `state = i * x`. The two gates are products
    of `x` with matrices of each head, which are left to a library of products. Within a call the
    state is float32, whatever dtype `ssm_state` has.

    Args:
        x: Inputs; the rows may be slices of a wider tensor, here and in the gates and `z`.
        recurrence_gate: How much each channel forgets, before bias and sigmoid.
        input_gate: How much of the input each channel takes, before bias and sigmoid.
        A: Logarithm of each channel's decay under an open gate, at most 0; `-8 * softplus(L)` of
            the paper's parameter.
        ssm_state: Pool of states, one number a channel, with any strides, written in place. A
            state is read only where `has_initial_state` says that there is one.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is. Rows behind the last sequence are zero in the
            result.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        recurrence_bias: Added to `recurrence_gate`.
        input_bias: Added to `input_gate`.
        z: The other branch of the block, which gates the result through the GELU of tanh.
        checkpoint_tokens: Tokens of this step, as rows of `x` in ascending order, after which the
            state is written to a further block, for a prompt that is to be resumed there. Those
            past the last token are padding.
        checkpoint_indices: State block for each of them, apart from all other blocks of the call;
            for an id <= 0, or in a sequence that is padding, nothing is written.
        out: Where the result goes; it may be `x`, `z` or a gate itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape or a device does not fit; where values are readable (see `checks`),
            lengths do not cut the rows, checkpoints descend, or a block is past the pool or named
            twice.
        TypeError: A dtype is not accepted.

    Source: De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention", 2.4.
    """
    given = {**locals()}
    num_tokens, _ = shape_of(x, "x", 2)
    _expect_unit(x, recurrence_gate, input_gate, A, ssm_state, recurrence_bias, input_bias, z, out)
    expect_prompts(
        num_tokens, ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    )  # fmt: skip
    return implementation(rg_lru, runs_on_triton(x))(**given)


def rg_lru_update(
    x: Float[Tensor, "num_seqs *num_new dim"],
    recurrence_gate: Float[Tensor, "num_seqs *num_new dim"],
    input_gate: Float[Tensor, "num_seqs *num_new dim"],
    A: Float[Tensor, " dim"],
    ssm_state: Float[Tensor, "num_blocks dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    recurrence_bias: Float[Tensor, " dim"] | None = None,
    input_bias: Float[Tensor, " dim"] | None = None,
    z: Float[Tensor, "num_seqs *num_new dim"] | None = None,
    checkpoint_indices: Int32[Tensor, "num_seqs *num_new"] | None = None,
    out: Float[Tensor, "num_seqs *num_new dim"] | None = None,
) -> Float[Tensor, "num_seqs *num_new dim"]:
    """Advance the state of each sequence by one to eight tokens: a decode step of `rg_lru`.

    Every sequence goes on from its state, which is read once and written once, after the last
    token, or else after each token to a block of its own. Within a call it is float32, whatever
    dtype `ssm_state` has.

    Args:
        x: New inputs of each sequence: `[num_seqs, num_new, dim]`, or `[num_seqs, dim]` for one
            token each. The rows may be slices of a wider tensor, as in the gates and `z`.
        recurrence_gate: How much each channel forgets, before bias and sigmoid.
        input_gate: How much of the input each channel takes, before bias and sigmoid.
        A: Logarithm of each channel's decay under an open gate, at most 0.
        ssm_state: Pool of states, one number a channel, with any strides, read and written in
            place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        recurrence_bias: Added to `recurrence_gate`.
        input_bias: Added to `input_gate`.
        z: The other branch of the block, which gates the result through the GELU of tanh.
        checkpoint_indices: State block for each new token, for a draft of which some tokens may be
            refused. The state after a token is written there, and to `state_indices` nothing is.
            No block comes twice, and none is that of another sequence; its own block may be one.
            For an id <= 0 nothing is written.
        out: Where the result goes; it may be `x`, `z` or a gate itself.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device or the number of new tokens does not fit, or on a CPU
            a block is past the pool.
        TypeError: A dtype is not accepted.

    Source: De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention", 2.4.
    """
    given = {**locals()}
    num_seqs, *num_new, _ = shape_of(x, "x", 2, 3)
    _expect_unit(x, recurrence_gate, input_gate, A, ssm_state, recurrence_bias, input_bias, z, out)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, x.device)
    expect_new_tokens(num_new)
    expect_step(state_indices, ssm_state)
    if checkpoint_indices is not None:
        expect_draft((num_seqs, *num_new), checkpoint_indices, state_indices, ssm_state)
    return implementation(rg_lru_update, runs_on_triton(x))(**given)


def _expect_unit(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    A: Tensor,
    ssm_state: Tensor,
    recurrence_bias: Tensor | None,
    input_bias: Tensor | None,
    z: Tensor | None,
    out: Tensor | None,
) -> None:
    """Check what a prompt and a decode step have in common."""
    *tokens, dim = shape_of(x, "x", 2, 3)
    rows, device = (*tokens, dim), x.device
    num_blocks, _ = shape_of(ssm_state, "ssm_state", 2)
    expect_tensor(x, "x", rows, FLOATS, device)
    expect_tensor(recurrence_gate, "recurrence_gate", rows, FLOATS, device)
    expect_tensor(input_gate, "input_gate", rows, FLOATS, device)
    expect_tensor(A, "A", (dim,), FLOAT32, device)
    expect_tensor(ssm_state, "ssm_state", (num_blocks, dim), FLOATS, device)
    expect_own_memory(ssm_state, "ssm_state")
    for vector, name in ((recurrence_bias, "recurrence_bias"), (input_bias, "input_bias")):
        if vector is not None:
            expect_tensor(vector, name, (dim,), FLOATS, device)
    if z is not None:
        expect_tensor(z, "z", rows, FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", rows, (x.dtype,), device)
        expect_own_memory(out, "out")
