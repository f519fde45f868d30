"""The gated delta rule over whole prompts, and over a few tokens at a time."""

from jaxtyping import Bool, Float, Int32
from torch import Tensor

from blockstride.checks import (
    FLOATS,
    INT32,
    expect,
    expect_own_memory,
    expect_tensor,
    shape_of,
)
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import expect_new_tokens
from blockstride.kernels.common.sequences import expect_draft, expect_prompts, expect_step

MAX_KEY_DIM = 256


def gated_delta_rule(
    q: Float[Tensor, "num_tokens num_heads head_k_dim"],
    k: Float[Tensor, "num_tokens num_heads head_k_dim"],
    v: Float[Tensor, "num_tokens num_value_heads head_v_dim"],
    g: Float[Tensor, "num_tokens num_value_heads *head_k_dim"],
    beta: Float[Tensor, "num_tokens num_value_heads"],
    ssm_state: Float[Tensor, "num_blocks num_value_heads head_k_dim head_v_dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    checkpoint_tokens: Int32[Tensor, " num_checkpoints"] | None = None,
    checkpoint_indices: Int32[Tensor, " num_checkpoints"] | None = None,
    out: Float[Tensor, "num_tokens num_value_heads head_v_dim"] | None = None,
) -> Float[Tensor, "num_tokens num_value_heads head_v_dim"]:
    """Run the rule over every token of every sequence, and keep the last state of each.

    Token by token and head by head: `state *= exp(g)`, then what the state holds for the key is
    moved towards the value, `state += outer(k, beta * (v - k @ state))`, and
    `out = scale * q @ state`. Neighbouring value heads share a head's `q` and `k`.

    Args:
        q: Queries. Any strides, here and in `k`, `v`, `g` and `beta`.
        k: Keys; without `qk_l2norm` of length 1 at most, or the rule may diverge.
        v: Values.
        g: Logarithm of the decay, at most 0: one number for each value head, as in Gated DeltaNet,
            or with a third axis one for each channel of its keys, as in Kimi Delta Attention.
        beta: How far each value head moves, from 0 to 1; up to 2, past its value, where states may
            have negative eigenvalues.
        ssm_state: Pool of states with any strides, written in place. A state is read only where
            `has_initial_state` says that there is one. Whatever its dtype is, it is carried in
            float32 within a call.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is. Rows behind the last sequence are zero in the
            result.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        scale: Factor of the outputs; `head_k_dim ** -0.5` if not given.
        qk_l2norm: Whether queries and keys are first brought to unit length,
            `q / sqrt(sum(q * q) + 1e-6)`.
        checkpoint_tokens: Tokens of this step, as rows of `q` in ascending order, after which the
            state is written to a further block, for a prompt that is to be resumed there. Those
            past the last token are padding.
        checkpoint_indices: State block for each of them, apart from all other blocks of the call;
            for an id <= 0, or in a sequence that is padding, nothing is written.
        out: Where the result goes; it may be `v` itself.

    Returns:
        The output of each token in the dtype of `v`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device or the number of heads does not fit; where values are readable
            (see `checks`), lengths do not cut the rows, checkpoints descend, or a block is past the
            pool or named twice.
        TypeError: A dtype is not accepted; `q`, `k` and `v` have the same one.

    Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 3; by channel,
    Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 3.
    """
    given = {**locals()}
    num_tokens, _, key_dim = shape_of(q, "q", 3)
    _expect_rule(q, k, v, g, beta, ssm_state, out)
    expect_prompts(
        num_tokens, ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices,
    )  # fmt: skip
    given["scale"] = key_dim**-0.5 if scale is None else scale
    return implementation(gated_delta_rule, runs_on_triton(q))(**given)


def gated_delta_rule_update(
    q: Float[Tensor, "num_seqs *num_new num_heads head_k_dim"],
    k: Float[Tensor, "num_seqs *num_new num_heads head_k_dim"],
    v: Float[Tensor, "num_seqs *num_new num_value_heads head_v_dim"],
    g: Float[Tensor, "num_seqs *num_new_and_gates"],
    beta: Float[Tensor, "num_seqs *num_new num_value_heads"],
    ssm_state: Float[Tensor, "num_blocks num_value_heads head_k_dim head_v_dim"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    scale: float | None = None,
    qk_l2norm: bool = False,
    checkpoint_indices: Int32[Tensor, "num_seqs *num_new"] | None = None,
    out: Float[Tensor, "num_seqs *num_new num_value_heads head_v_dim"] | None = None,
) -> Float[Tensor, "num_seqs *num_new num_value_heads head_v_dim"]:
    """Advance the state of each sequence by one to eight tokens, as `gated_delta_rule` does.

    Every sequence goes on from its state, which is read once and written once, after the last
    token, or else after each token to a block of its own.

    Args:
        q: Queries: `[num_seqs, num_new, num_heads, head_k_dim]`, or without the axis of tokens for
            one token each. Any strides, as in the others.
        k: Keys.
        v: Values.
        g: Logarithm of the decay, at most 0: one number for each value head of a token, or with a
            further axis one for each channel of its keys.
        beta: How far each value head moves, from 0 to 1.
        ssm_state: Pool of states with any strides, read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        scale: Factor of the outputs; `head_k_dim ** -0.5` if not given.
        qk_l2norm: Whether queries and keys are first brought to unit length.
        checkpoint_indices: State block for each new token, for a draft of which some tokens may be
            refused. The state after a token is written there, and to `state_indices` nothing is.
            No block comes twice, and none is that of another sequence; its own block may be one.
            For an id <= 0 nothing is written.
        out: Where the result goes; it may be `v` itself.

    Returns:
        The output of each token in the dtype of `v`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device, the number of heads or of new tokens does not fit, or on a
            CPU a block is past the pool.
        TypeError: A dtype is not accepted; `q`, `k` and `v` have the same one.

    Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", 3; by channel,
    Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 3.
    """
    given = {**locals()}
    num_seqs, *num_new, _, key_dim = shape_of(q, "q", 3, 4)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, q.device)
    _expect_rule(q, k, v, g, beta, ssm_state, out)
    expect_new_tokens(num_new, "q")
    expect_step(state_indices, ssm_state)
    if checkpoint_indices is not None:
        expect_draft((num_seqs, *num_new), checkpoint_indices, state_indices, ssm_state)
    given["scale"] = key_dim**-0.5 if scale is None else scale
    return implementation(gated_delta_rule_update, runs_on_triton(q))(**given)


def _expect_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    out: Tensor | None,
) -> None:
    """Check what a prompt and a decode step have in common."""
    (*tokens, num_heads, key_dim), device = shape_of(q, "q", 3, 4), q.device
    *_, num_value_heads, value_dim = shape_of(v, "v", q.dim())
    num_blocks, _, _, _ = shape_of(ssm_state, "ssm_state", 4)
    pool = (num_blocks, num_value_heads, key_dim, value_dim)
    gates = (*tokens, num_value_heads)
    by_channel = len(shape_of(g, "g", q.dim() - 1, q.dim())) == q.dim()
    expect_tensor(q, "q", (*tokens, num_heads, key_dim), FLOATS, device)
    expect_tensor(k, "k", (*tokens, num_heads, key_dim), (q.dtype,), device)
    expect_tensor(v, "v", (*gates, value_dim), (q.dtype,), device)
    expect_tensor(g, "g", (*gates, key_dim) if by_channel else gates, FLOATS, device)
    expect_tensor(beta, "beta", gates, FLOATS, device)
    expect_tensor(ssm_state, "ssm_state", pool, FLOATS, device)
    expect_own_memory(ssm_state, "ssm_state")
    if out is not None:
        expect_tensor(out, "out", (*gates, value_dim), (v.dtype,), device)
        expect_own_memory(out, "out")
    if num_heads == 0 or num_value_heads % num_heads:
        expect(False, "v", f"a multiple of the {num_heads} heads of q", num_value_heads)
    if not 1 <= key_dim <= MAX_KEY_DIM:
        expect(False, "q", f"keys of 1 to {MAX_KEY_DIM} elements", key_dim)
