"""The decode step of Mamba-2 that writes states back only now and then."""

from jaxtyping import Float, Int32
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
from blockstride.kernels.common.dispatch import implementation, runs_on_triton
from blockstride.kernels.common.recurrence import MAX_D_STATE, expect_head_recurrence
from blockstride.kernels.common.sequences import expect_step
from blockstride.kernels.mamba2.state_ring import StateRing

MAX_RING_LENGTH = 16


def ssd_ring_update(
    x: Float[Tensor, "num_seqs num_heads head_dim"],
    dt: Float[Tensor, "num_seqs num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_seqs num_groups d_state"],
    C: Float[Tensor, "num_seqs num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    ring: StateRing,
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_seqs num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_seqs num_heads head_dim"] | None = None,
) -> Float[Tensor, "num_seqs num_heads head_dim"]:
    """Do what `ssd_state_update` does, with the latest tokens kept in a ring beside the state.

    A step adds its token to the ring of its sequence. When the ring is full, the step takes all of
    its tokens into the state instead, writes that, and leaves the ring empty. Whoever reads a state
    by itself must call `fold_state_ring` first.

    Args:
        x: New input of each sequence. Any strides, here and in `dt`, `B`, `C` and `z`.
        dt: Step size of each head before bias and softplus.
        A: Decay rate of each head, already `-exp(A_log)`.
        B: Input projection of each group.
        C: Output projection of each group.
        ssm_state: Pool of states with any strides, read, and written when a ring is full.
        ring: Pool of rings, read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's row of the result is zero.
        D: Skip connection of each head.
        z: Gate.
        dt_bias: Added to `dt` before softplus.
        dt_softplus: Whether `dt` goes through softplus.
        out: Where the result goes; it may be `x` or `z` itself.

    Returns:
        The output of each sequence in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device, the number of groups or the length of the ring does not fit,
            or on a CPU a block is past the pool.
        TypeError: A dtype is not accepted.

    Source: Dao and Gu, "Transformers are SSMs", 6: the quadratic form, over the tokens of a ring.
    """
    given = {**locals()}
    num_seqs, _, _ = shape_of(x, "x", 3)
    _, num_groups, _ = shape_of(B, "B", 3)
    expect_head_recurrence(x, dt, A, B, C, ssm_state, D, z, dt_bias, out)
    _expect_ring(ssm_state, ring, state_indices, num_seqs, num_groups)
    return implementation(ssd_ring_update, runs_on_triton(x))(**given)


def fold_state_ring(
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    ring: StateRing,
    state_indices: Int32[Tensor, " num_seqs"],
) -> None:
    """Take the tokens of the rings of some sequences into their states, and empty the rings.

    Args:
        ssm_state: Pool of states with any strides, written where a ring holds a token.
        ring: Pool of rings, read and emptied.
        state_indices: State blocks, none of them twice. For an id <= 0 nothing is read or written.

    Raises:
        ValueError: A shape, a device or the length of the ring does not fit, or on a CPU a block is
            past the pool.
        TypeError: A dtype is not accepted.
    """
    given = {**locals()}
    shape = shape_of(ssm_state, "ssm_state", 4)
    expect_tensor(ssm_state, "ssm_state", shape, FLOATS, ssm_state.device)
    expect_own_memory(ssm_state, "ssm_state")
    (num_seqs,) = shape_of(state_indices, "state_indices", 1)
    _, _, num_groups, _ = shape_of(ring.B, "ring.B", 4)
    _expect_ring(ssm_state, ring, state_indices, num_seqs, num_groups)
    implementation(fold_state_ring, runs_on_triton(ssm_state))(**given)


def _expect_ring(
    ssm_state: Tensor, ring: StateRing, state_indices: Tensor, num_seqs: int, num_groups: int
) -> None:
    """Check that rings fit the states that they stand beside."""
    num_blocks, num_heads, head_dim, d_state = ssm_state.shape
    (_, length, _, _), device = shape_of(ring.x, "ring.x", 4), ssm_state.device
    slots = (num_blocks, length)
    expect_tensor(ring.x, "ring.x", (*slots, num_heads, head_dim), FLOATS, device)
    expect_tensor(ring.B, "ring.B", (*slots, num_groups, d_state), FLOATS, device)
    expect_tensor(ring.log_decay, "ring.log_decay", (*slots, num_heads), FLOAT32, device)
    expect_tensor(ring.held, "ring.held", (num_blocks, num_heads), FLOAT32, device)
    for name, part in zip(ring._fields, ring, strict=True):
        expect_own_memory(part, f"ring.{name}")
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, device)
    expect_step(state_indices, ssm_state)
    if not 1 <= length <= MAX_RING_LENGTH:
        expect(False, "ring", f"from 1 to {MAX_RING_LENGTH} tokens", length)
    if not 1 <= d_state <= MAX_D_STATE:
        expect(False, "ssm_state", f"from 1 to {MAX_D_STATE} states", d_state)
