"""One to eight tokens of the real-gated linear recurrent unit, in place in the states' pages.

One program takes some channels of one sequence: it reads their states once, advances them token by
token in registers, and writes them once, or after each token to a page of its own.

Bytes per step and channel: a state read and written, and per token x, both gates, z and the output.
Source: De et al., "Griffin", 2.4.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import gelu_tanh, widened
from blockstride.kernels.common.gpu.launching import assertions, dense, next_power_of_2
from blockstride.kernels.common.gpu.rows import by_token, load_vector, store_zeros
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.lru.gpu.gates import load_rates, next_state

# of a program of one warp, eight a lane: 16 bytes of bfloat16
CHANNELS = 256


@triton.jit
def rg_lru_update_kernel(
    x_ptr, recurrence_ptr, input_ptr, A_ptr, ssm_state_ptr, state_indices_ptr,
    recurrence_bias_ptr, input_bias_ptr, z_ptr, checkpoint_indices_ptr, out_ptr,
    # strides, in elements
    stride_x_seq, stride_x_token, stride_x_channel,
    stride_recurrence_seq, stride_recurrence_token, stride_recurrence_channel,
    stride_input_seq, stride_input_token, stride_input_channel,
    stride_state_block, stride_state_channel,
    stride_z_seq, stride_z_token, stride_z_channel,
    stride_out_seq, stride_out_token, stride_out_channel,
    # meta-parameters
    DIM: tl.constexpr, NUM_NEW: tl.constexpr, BLOCK_D: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some channels of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    # the compiler drops a mask that is all true
    mask = tl.full([BLOCK_D], True, tl.int1)
    if DIM % BLOCK_D != 0:
        mask = offs < DIM
    channels = offs.to(tl.int64)
    out_ptr += sequence * stride_out_seq + channels * stride_out_channel
    block = load_block(state_indices_ptr, tl.program_id(0), NUM_BLOCKS)
    if block <= 0:
        store_zeros(out_ptr, stride_out_token, NUM_NEW, mask)
        return

    state_ptrs = ssm_state_ptr + channels * stride_state_channel
    page_ptrs = state_ptrs + block * stride_state_block
    state = widened(tl.load(page_ptrs, mask=mask, other=0.0))
    rates = load_rates(A_ptr, offs, mask)
    recurrence_bias = load_vector(recurrence_bias_ptr, offs, mask)
    input_bias = load_vector(input_bias_ptr, offs, mask)
    x_ptr += sequence * stride_x_seq + channels * stride_x_channel
    recurrence_ptr += sequence * stride_recurrence_seq + channels * stride_recurrence_channel
    input_ptr += sequence * stride_input_seq + channels * stride_input_channel
    if z_ptr is not None:
        z_ptr += sequence * stride_z_seq + channels * stride_z_channel
    element = ssm_state_ptr.dtype.element_ty
    for i in range(NUM_NEW):
        x = tl.load(x_ptr, mask=mask, other=0.0)
        recurrence_gate = widened(tl.load(recurrence_ptr, mask=mask, other=0.0))
        input_gate = widened(tl.load(input_ptr, mask=mask, other=0.0))
        state, _ = next_state(
            state, x, recurrence_gate + recurrence_bias, input_gate + input_bias, rates, False
        )
        y = state
        if z_ptr is not None:
            y *= gelu_tanh(widened(tl.load(z_ptr, mask=mask, other=0.0)))
            z_ptr += stride_z_token
        tl.store(out_ptr, y.to(out_ptr.dtype.element_ty), mask=mask)
        if checkpoint_indices_ptr is not None:
            kept = tl.load(checkpoint_indices_ptr + sequence * NUM_NEW + i).to(tl.int64)
            if NUM_BLOCKS is not None:
                tl.device_assert(kept < NUM_BLOCKS, "checkpoint_indices: a block past the pool")
            kept_ptrs = state_ptrs + kept * stride_state_block
            tl.store(kept_ptrs, state.to(element), mask=mask & (kept > 0))
        x_ptr += stride_x_token
        recurrence_ptr += stride_recurrence_token
        input_ptr += stride_input_token
        out_ptr += stride_out_token
    if checkpoint_indices_ptr is None:
        tl.store(page_ptrs, state.to(element), mask=mask)


def rg_lru_update(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    A: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    recurrence_bias: Tensor | None = None,
    input_bias: Tensor | None = None,
    z: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.rg_lru_update`, which validates."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    num_seqs, dim = x.shape[0], x.shape[-1]
    if num_seqs == 0 or dim == 0:
        return result
    block_d = min(next_power_of_2(dim), CHANNELS)
    A, state_indices, checkpoint_indices = dense(A, state_indices, checkpoint_indices)
    rg_lru_update_kernel[(num_seqs, -(-dim // block_d))](
        x, recurrence_gate, input_gate, A, ssm_state, state_indices,
        *dense(recurrence_bias, input_bias), z, checkpoint_indices, result,
        *by_token(x), *by_token(recurrence_gate), *by_token(input_gate), *ssm_state.stride(),
        *(by_token(z) if z is not None else (0, 0, 0)), *by_token(result),
        DIM=dim, NUM_NEW=x.shape[1] if x.dim() == 3 else 1, BLOCK_D=block_d,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return result
