"""Causal depthwise convolution of one to eight new tokens, in place in the pages of its inputs.

One program takes some channels of one sequence: it reads their last inputs, convolves token by
token with them in registers, and writes the last ones back.

Bytes per step and channel: `width - 1` inputs read and written, and per token one input and one
output. Source: Gu and Dao, "Mamba", 3.4.
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


@triton.jit
def causal_conv1d_update_kernel(
    x_ptr, weight_ptr, bias_ptr, conv_state_ptr, state_indices_ptr, out_ptr,
    # strides, in elements
    stride_x_seq, stride_x_token, stride_x_channel, stride_weight_channel, stride_weight_tap,
    stride_state_block, stride_state_channel: tl.constexpr, stride_state_tap: tl.constexpr,
    stride_out_seq, stride_out_token, stride_out_channel,
    # meta-parameters
    DIM: tl.constexpr, WIDTH: tl.constexpr, NUM_NEW: tl.constexpr, SILU: tl.constexpr,
    INDEX: tl.constexpr, BLOCK_D: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some channels of one sequence."""
    sequence = tl.program_id(0)
    offs_d, mask = channels_of(tl.program_id(1), DIM, BLOCK_D)
    first, channels = sequence.to(tl.int64), offs_d.to(tl.int64)
    x_ptr += first * stride_x_seq + channels * stride_x_channel
    out_ptr += first * stride_out_seq + channels * stride_out_channel
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    if block <= 0:
        store_zeros(out_ptr, stride_out_token, NUM_NEW, mask)
        return

    conv_state_ptr += block * stride_state_block + offs_d.to(INDEX) * stride_state_channel
    # inputs that the state holds as they come need no conversion on their way
    as_is: tl.constexpr = conv_state_ptr.dtype.element_ty == x_ptr.dtype.element_ty
    window = load_rows(conv_state_ptr, stride_state_tap, mask, WIDTH - 1, as_is)
    weight_ptr += channels * stride_weight_channel
    taps = load_taps(weight_ptr, stride_weight_tap, mask, WIDTH)
    bias = load_bias(bias_ptr, offs_d, mask)
    # a tap is written where another thread has yet to read
    tl.debug_barrier()
    for _ in tl.static_range(NUM_NEW):
        x = tl.load(x_ptr, mask=mask, other=0.0)
        x = x if as_is else widened(x)
        y = convolve(taps, window, widened(x), bias, WIDTH, SILU)
        tl.store(out_ptr, y.to(out_ptr.dtype.element_ty), mask=mask)
        window = window[1:] + (x,)  # noqa: RUF005 -- the compiler has no stars
        x_ptr += stride_x_token
        out_ptr += stride_out_token
    store_rows(conv_state_ptr, stride_state_tap, window, mask, WIDTH - 1)


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    state_indices: Tensor,
    *,
    activation: Literal["silu"] | None = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.causal_conv1d_update`, which validates."""
    num_seqs, num_new, dim = x.shape
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if num_seqs == 0 or dim == 0:
        return result
    block_d = min(BLOCK_D, next_power_of_2(dim))
    if num_seqs * dim >= 2 * BLOCK_D * ENOUGH_PROGRAMS:
        block_d *= 2
    causal_conv1d_update_kernel[(num_seqs, -(-dim // block_d))](
        x,
        weight,
        None if bias is None else bias.contiguous(),
        conv_state,
        state_indices.contiguous(),
        result,
        *x.stride(),
        *weight.stride(),
        *conv_state.stride(),
        *result.stride(),
        DIM=dim,
        WIDTH=weight.shape[1],
        NUM_NEW=num_new,
        SILU=activation == "silu",
        INDEX=index_dtype(2, conv_state),
        BLOCK_D=block_d,
        **assertions(NUM_BLOCKS=conv_state.shape[0]),
        num_warps=1,
        enable_fp_fusion=False,
    )
    return result
