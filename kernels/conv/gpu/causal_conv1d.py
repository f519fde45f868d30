"""Causal depthwise convolution over prompts of any lengths, with its inputs carried between calls.

One program takes a tile of one sequence's tokens and of channels, and walks the tokens with the
last inputs in registers, so that an input is loaded once (and `width - 1` a tile once more). Tiles
belong to sequences: no program sees two. The first tile of a sequence is the one that reads its
state and, after that, writes the last inputs there.

Bytes per token and channel: one input read, one output written. Source: Gu and Dao, "Mamba", 3.4;
Tri Dao's causal-conv1d for the window in registers.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import widened
from blockstride.kernels.common.gpu.launching import (
    ENOUGH_PROGRAMS,
    assertions,
    index_dtype,
    next_power_of_2,
)
from blockstride.kernels.common.gpu.rows import store_zeros
from blockstride.kernels.common.gpu.sequence_chunks import end_of
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.conv.gpu.conv_window import (
    BLOCK_D,
    channels_of,
    convolve,
    load_bias,
    load_rows,
    load_taps,
    store_rows,
)

LONGEST_TILE, SHORTEST_TILE = 64, 8


@triton.jit
def sequence_of_tile(query_start_loc_ptr, num_seqs, tile, BLOCK_T: tl.constexpr):
    """The sequence that a tile belongs to, and which of its tiles it is.

    Sequence `s` has the tiles from `start // BLOCK_T + s` on; that is room for all of its tokens
    wherever it starts, so the number of tiles follows from sizes that the host knows. Tokens behind
    the last sequence are one more.
    """
    low, high = 0, num_seqs + 1
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(query_start_loc_ptr + middle) // BLOCK_T + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle)
    return low, tile - tl.load(query_start_loc_ptr + low) // BLOCK_T - low


@triton.jit(do_not_specialize=["num_tokens", "num_seqs"])
def causal_conv1d_kernel(
    x_ptr, weight_ptr, bias_ptr, conv_state_ptr,
    state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr, out_ptr,
    # sizes
    num_seqs, num_tokens,
    # strides, in elements
    stride_x_token, stride_x_channel, stride_weight_channel, stride_weight_tap,
    stride_state_block, stride_state_channel: tl.constexpr, stride_state_tap: tl.constexpr,
    stride_out_token, stride_out_channel,
    # meta-parameters
    DIM: tl.constexpr, WIDTH: tl.constexpr, SILU: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One tile of one sequence."""
    sequence, tile = sequence_of_tile(query_start_loc_ptr, num_seqs, tl.program_id(0), BLOCK_T)
    sequence_start = tl.load(query_start_loc_ptr + sequence)
    end = end_of(query_start_loc_ptr, sequence, num_seqs, num_tokens)
    start = sequence_start + tile * BLOCK_T
    if start >= end:
        return
    count = tl.minimum(end - start, BLOCK_T)
    offs_d, mask = channels_of(tl.program_id(1), DIM, BLOCK_D)
    first, channels = start.to(tl.int64), offs_d.to(tl.int64)
    x_ptr += first * stride_x_token + channels * stride_x_channel
    out_ptr += first * stride_out_token + channels * stride_out_channel
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS, num_seqs)
    if block <= 0:
        store_zeros(out_ptr, stride_out_token, count, mask)
        return

    conv_state_ptr += block * stride_state_block + offs_d.to(INDEX) * stride_state_channel
    if tile == 0:
        mask_state = mask & (tl.load(has_initial_state_ptr + sequence) != 0)
        window = load_rows(conv_state_ptr, stride_state_tap, mask_state, WIDTH - 1, AS_IS=False)
        kept = ()
        for k in tl.static_range(WIDTH - 1):
            # of a short sequence the kept inputs reach back into its initial state
            row = end - start - (WIDTH - 1) + k
            new_ptr = x_ptr + row.to(tl.int64) * stride_x_token
            new = widened(tl.load(new_ptr, mask=mask & (row >= 0), other=0.0))
            old_ptr = conv_state_ptr + (row + WIDTH - 1).to(INDEX) * stride_state_tap
            old = widened(tl.load(old_ptr, mask=mask_state & (row < 0), other=0.0))
            kept += (tl.where(row >= 0, new, old),)
        # a tap is written where another thread has yet to read
        tl.debug_barrier()
        store_rows(conv_state_ptr, stride_state_tap, kept, mask, WIDTH - 1)
    else:
        before_ptr = x_ptr - tl.cast(stride_x_token, tl.int64) * (WIDTH - 1)
        window = load_rows(before_ptr, stride_x_token, mask, WIDTH - 1, AS_IS=False)
    weight_ptr += channels * stride_weight_channel
    taps = load_taps(weight_ptr, stride_weight_tap, mask, WIDTH)
    bias = load_bias(bias_ptr, offs_d, mask)
    for _ in tl.range(count, loop_unroll_factor=WIDTH):
        x = widened(tl.load(x_ptr, mask=mask, other=0.0))
        y = convolve(taps, window, x, bias, WIDTH, SILU)
        tl.store(out_ptr, y.to(out_ptr.dtype.element_ty), mask=mask)
        window = window[1:] + (x,)  # noqa: RUF005 -- the compiler has no stars
        x_ptr += stride_x_token
        out_ptr += stride_out_token


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    activation: Literal["silu"] | None = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.causal_conv1d`, which validates."""
    num_tokens, num_seqs = x.shape[0], state_indices.shape[0]
    dim, width = weight.shape
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if num_tokens == 0 or dim == 0:
        return result
    block_d = min(BLOCK_D, next_power_of_2(dim))
    tiles_d = -(-dim // block_d)
    block_t = SHORTEST_TILE
    while block_t < LONGEST_TILE and num_tokens * tiles_d >= 2 * block_t * ENOUGH_PROGRAMS:
        block_t *= 2
    causal_conv1d_kernel[(num_tokens // block_t + num_seqs + 1, tiles_d)](
        x,
        weight,
        None if bias is None else bias.contiguous(),
        conv_state,
        state_indices.contiguous(),
        query_start_loc.contiguous(),
        has_initial_state.contiguous(),
        result,
        num_seqs,
        num_tokens,
        *x.stride(),
        *weight.stride(),
        *conv_state.stride(),
        *result.stride(),
        DIM=dim,
        WIDTH=width,
        SILU=activation == "silu",
        INDEX=index_dtype(2, conv_state),
        BLOCK_T=block_t,
        BLOCK_D=block_d,
        **assertions(NUM_BLOCKS=conv_state.shape[0]),
        num_warps=1,
        enable_fp_fusion=False,
    )
    return result
