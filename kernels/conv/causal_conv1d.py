"""Causal depthwise convolution of Mamba: whole prompts, and a few tokens at a time."""

from typing import Literal

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
from blockstride.kernels.common.sequences import expect_prompts, expect_step

MAX_NEW_TOKENS = 8
MAX_WIDTH = 8


def causal_conv1d(
    x: Float[Tensor, "num_tokens dim"],
    weight: Float[Tensor, "dim width"],
    bias: Float[Tensor, " dim"] | None,
    conv_state: Float[Tensor, "num_blocks dim taps"],
    state_indices: Int32[Tensor, " num_seqs"],
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"],
    has_initial_state: Bool[Tensor, " num_seqs"],
    *,
    activation: Literal["silu"] | None = "silu",
    out: Float[Tensor, "num_tokens dim"] | None = None,
) -> Float[Tensor, "num_tokens dim"]:
    """Convolve every channel of every sequence, and keep the last `width - 1` inputs of each.

    `out[t] = activation(bias + sum_k weight[k] * input[t - width + 1 + k])`, where the inputs
    before the first token are the ones in `conv_state`, or zero.

    Args:
        x: Inputs; the rows may be slices of a wider tensor.
        weight: Taps of each channel, the oldest input's first.
        bias: Added before the activation.
        conv_state: Pool of the last `width - 1` inputs, oldest first, with any strides: channels
            outer (DS) or taps outer (SD). Written in place; of a sequence shorter than
            `width - 1` tokens the kept inputs reach back into its initial state. A state is read
            only where `has_initial_state` says that there is one.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        query_start_loc: Prefix sum of the sequences' lengths in tokens. A sequence without tokens
            leaves its state block as it is. Rows behind the last sequence are zero in the
            result.
        has_initial_state: Whether a sequence continues from its state block or starts from zero.
        activation: `"silu"`, or `None` for none.
        out: Where the result goes; it must not overlap `x`.

    Returns:
        The output of each token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device or the activation does not fit; where values are readable
            (see `checks`), lengths do not cut the rows, or a block is past the pool or named twice.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.4.
    """
    given = {**locals()}
    num_tokens, _ = shape_of(x, "x", 2)
    _expect_convolution(x, weight, bias, conv_state, activation, out)
    expect_prompts(num_tokens, conv_state, state_indices, query_start_loc, has_initial_state)
    return implementation(causal_conv1d, runs_on_triton(x))(**given)


def causal_conv1d_update(
    x: Float[Tensor, "num_seqs num_new dim"],
    weight: Float[Tensor, "dim width"],
    bias: Float[Tensor, " dim"] | None,
    conv_state: Float[Tensor, "num_blocks dim taps"],
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    activation: Literal["silu"] | None = "silu",
    out: Float[Tensor, "num_seqs num_new dim"] | None = None,
) -> Float[Tensor, "num_seqs num_new dim"]:
    """Convolve one to eight new tokens of each sequence: a decode step of `causal_conv1d`.

    Args:
        x: New inputs of each sequence; the rows may be slices of a wider tensor.
        weight: Taps of each channel, the oldest input's first.
        bias: Added before the activation.
        conv_state: Pool of the last `width - 1` inputs, oldest first, with any strides: channels
            outer (DS) or taps outer (SD). Read and written in place.
        state_indices: State block of each sequence, none of them twice. For an id <= 0 nothing is
            read or written, and the sequence's rows of the result are zero.
        activation: `"silu"`, or `None` for none.
        out: Where the result goes; it must not overlap `x`.

    Returns:
        The output of each new token in the dtype of `x`; `out`, if that was given.

    Raises:
        ValueError: A shape, a device, the activation or the number of new tokens does not fit, or
            on a CPU a block is past the pool.
        TypeError: A dtype is not accepted.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 3.4.
    """
    given = {**locals()}
    num_seqs, num_new, _ = shape_of(x, "x", 3)
    _expect_convolution(x, weight, bias, conv_state, activation, out)
    expect_tensor(state_indices, "state_indices", (num_seqs,), INT32, x.device)
    expect_step(state_indices, conv_state)
    if not 1 <= num_new <= MAX_NEW_TOKENS:
        expect(False, "x", f"1 to {MAX_NEW_TOKENS} new tokens a sequence", num_new)
    return implementation(causal_conv1d_update, runs_on_triton(x))(**given)


def _expect_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    activation: str | None,
    out: Tensor | None,
) -> None:
    """Check what a prompt and a decode step have in common."""
    dim, width = shape_of(weight, "weight", 2)
    num_blocks, _, _ = shape_of(conv_state, "conv_state", 3)
    device = x.device
    expect_tensor(x, "x", (*x.shape[:-1], dim), FLOATS, device)
    expect_tensor(weight, "weight", (dim, width), FLOATS, device)
    expect_tensor(conv_state, "conv_state", (num_blocks, dim, width - 1), FLOATS, device)
    expect_own_memory(conv_state, "conv_state")
    if bias is not None:
        expect_tensor(bias, "bias", (dim,), FLOATS, device)
    if out is not None:
        expect_tensor(out, "out", x.shape, (x.dtype,), device)
        expect_own_memory(out, "out")
    if not 2 <= width <= MAX_WIDTH:
        expect(False, "weight", f"a width from 2 to {MAX_WIDTH}", width)
    if activation not in {None, "silu"}:
        expect(False, "activation", "'silu' or None", repr(activation))
