"""One to eight tokens of Mamba-1's recurrence, in place in the states' pages.

One program takes some channels of one sequence: it reads their states once, advances them token by
token in registers, and writes them once.

Bytes per step and channel: `d_state` states read and written, as many decay rates (from L2, shared
by the sequences), and per token x, dt, z and the output. Source: Gu and Dao, "Mamba", 3.2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import LOG2_E, silu, softplus, widened
from blockstride.kernels.common.gpu.launching import assertions, dense, index_dtype, next_power_of_2
from blockstride.kernels.common.gpu.rows import by_token, store_zeros
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.common.gpu.state_parts import load_parts, store_parts

# states of a program of one warp, 32 a lane
TILE_STATES = 1024
# a part of a channel's states is one sector of memory, the least that is moved
PART_BYTES = 32


@triton.jit
def selective_state_update_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, ssm_state_ptr, state_indices_ptr,
    D_ptr, z_ptr, dt_bias_ptr, out_ptr,
    # strides, in elements
    stride_x_seq, stride_x_token, stride_x_channel,
    stride_dt_seq, stride_dt_token, stride_dt_channel,
    stride_A_channel: tl.constexpr, stride_A_state: tl.constexpr,
    stride_B_seq, stride_B_token, stride_B_state, stride_C_seq, stride_C_token, stride_C_state,
    stride_state_block, stride_state_channel: tl.constexpr, stride_state_state: tl.constexpr,
    stride_z_seq, stride_z_token, stride_z_channel,
    stride_out_seq, stride_out_token, stride_out_channel,
    # meta-parameters
    DIM: tl.constexpr, D_STATE: tl.constexpr, NUM_NEW: tl.constexpr, DT_SOFTPLUS: tl.constexpr,
    INDEX: tl.constexpr, BLOCK_M: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some channels of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    # the compiler drops a mask that is all true
    mask_m = tl.full([BLOCK_M], True, tl.int1)
    if DIM % BLOCK_M != 0:
        mask_m = offs_m < DIM
    channels = offs_m.to(tl.int64)
    out_ptr += sequence * stride_out_seq + channels * stride_out_channel
    block = load_block(state_indices_ptr, tl.program_id(0), NUM_BLOCKS)
    if block <= 0:
        store_zeros(out_ptr, stride_out_token, NUM_NEW, mask_m)
        return

    offs_n = tl.arange(0, BLOCK_N)[None, :]
    inner = offs_m.to(INDEX)[:, None] * stride_state_channel
    state_ptrs = ssm_state_ptr + block * stride_state_block + inner
    state_ptrs += offs_n.to(INDEX) * stride_state_state
    state = load_parts(state_ptrs, stride_state_state, mask_m, D_STATE, PARTS, BLOCK_N)
    A_ptr += offs_m.to(INDEX)[:, None] * stride_A_channel + offs_n.to(INDEX) * stride_A_state
    A = load_parts(A_ptr, stride_A_state, mask_m, D_STATE, PARTS, BLOCK_N)

    x_ptr += sequence * stride_x_seq + channels * stride_x_channel
    dt_ptr += sequence * stride_dt_seq + channels * stride_dt_channel
    B_ptr += sequence * stride_B_seq + offs_n.to(tl.int64) * stride_B_state
    C_ptr += sequence * stride_C_seq + offs_n.to(tl.int64) * stride_C_state
    if z_ptr is not None:
        z_ptr += sequence * stride_z_seq + channels * stride_z_channel
    one_row = tl.full([1], True, tl.int1)
    for _ in range(NUM_NEW):
        x = widened(tl.load(x_ptr, mask=mask_m, other=0.0))
        step = widened(tl.load(dt_ptr, mask=mask_m, other=0.0))
        if dt_bias_ptr is not None:
            step += widened(tl.load(dt_bias_ptr + offs_m, mask=mask_m, other=0.0))
        if DT_SOFTPLUS:
            step = softplus(step)
        B = load_parts(B_ptr, stride_B_state, one_row, D_STATE, PARTS, BLOCK_N)
        C = load_parts(C_ptr, stride_C_state, one_row, D_STATE, PARTS, BLOCK_N)
        power, added = (step * LOG2_E)[:, None], (step * x)[:, None]
        products = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        advanced = ()
        for part in tl.static_range(PARTS):
            decay = tl.math.exp2(A[part] * power)
            new = state[part] * decay + added * B[part]  # [BLOCK_M, BLOCK_N]
            products += new * C[part]
            advanced += (new,)
        state = advanced
        y = tl.sum(products, axis=1)
        if D_ptr is not None:
            y += widened(tl.load(D_ptr + offs_m, mask=mask_m, other=0.0)) * x
        if z_ptr is not None:
            y *= silu(widened(tl.load(z_ptr, mask=mask_m, other=0.0)))
            z_ptr += stride_z_token
        tl.store(out_ptr, y.to(out_ptr.dtype.element_ty), mask=mask_m)
        x_ptr += stride_x_token
        dt_ptr += stride_dt_token
        B_ptr += stride_B_token
        C_ptr += stride_C_token
        out_ptr += stride_out_token
    store_parts(state_ptrs, stride_state_state, state, mask_m, D_STATE, PARTS, BLOCK_N)


def selective_state_update(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.selective_state_update`, which validates."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    num_seqs, dim = x.shape[0], x.shape[-1]
    if num_seqs == 0 or dim == 0:
        return result
    d_state = A.shape[1]
    states = next_power_of_2(d_state)
    block_n = min(states, max(states // 4, PART_BYTES // ssm_state.element_size()))
    block_m = min(next_power_of_2(dim), max(1, TILE_STATES // states))
    state_indices, D, dt_bias = dense(state_indices, D, dt_bias)
    selective_state_update_kernel[(num_seqs, -(-dim // block_m))](
        x, dt, A, B, C, ssm_state, state_indices, D, z, dt_bias, result,
        *by_token(x), *by_token(dt), *A.stride(), *by_token(B), *by_token(C), *ssm_state.stride(),
        *(by_token(z) if z is not None else (0, 0, 0)), *by_token(result),
        DIM=dim, D_STATE=d_state, NUM_NEW=x.shape[1] if x.dim() == 3 else 1,
        DT_SOFTPLUS=dt_softplus, INDEX=index_dtype(2, ssm_state, A),
        BLOCK_M=block_m, PARTS=states // block_n, BLOCK_N=block_n,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return result
