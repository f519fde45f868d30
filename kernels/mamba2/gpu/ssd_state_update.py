"""One to eight tokens of Mamba-2's recurrence, in place in the states' pages.

One program takes some rows (channels) of one head of one sequence, and walks them in tiles: it
reads the states of a tile once, advances them token by token in registers, and writes them once. A
head's rows share their decay, step, B and C.

Bytes per step and row: `d_state` states read and written; per token x, z and the output. Source:
Dao and Gu, "Transformers are SSMs", 6 and 7.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import LOG2_E, silu, softplus, widened
from blockstride.kernels.common.gpu.launching import (
    ENOUGH_PROGRAMS,
    assertions,
    dense,
    index_dtype,
    next_power_of_2,
    strides_of,
)
from blockstride.kernels.common.gpu.rows import store_zeros
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.common.gpu.state_parts import load_parts, store_parts

# states of a tile of one warp, 32 a lane
TILE_STATES = 1024
# a part of a row's states is one line of memory: less, and B and C would take too many registers
PART_BYTES = 128


@triton.jit
def load_inputs(
    dt_ptr, dt_bias_ptr, A_ptr, B_ptr, C_ptr, stride_B_state, stride_C_state, head,
    DT_SOFTPLUS: tl.constexpr, D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A token's step size, decay, B and C: what the rows of a head share."""
    step = widened(tl.load(dt_ptr))
    if dt_bias_ptr is not None:
        step += widened(tl.load(dt_bias_ptr + head))
    if DT_SOFTPLUS:
        step = softplus(step)
    decay = tl.math.exp2(tl.load(A_ptr + head) * (step * LOG2_E))
    one_row = tl.full([1], True, tl.int1)
    B = load_parts(B_ptr, stride_B_state, one_row, D_STATE, PARTS, BLOCK_N)
    C = load_parts(C_ptr, stride_C_state, one_row, D_STATE, PARTS, BLOCK_N)
    return step, decay, B, C


@triton.jit
def ssd_state_update_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, ssm_state_ptr, state_indices_ptr,
    D_ptr, z_ptr, dt_bias_ptr, out_ptr,
    # strides, in elements
    stride_x_seq, stride_x_token, stride_x_head, stride_x_row,
    stride_dt_seq, stride_dt_token, stride_dt_head,
    stride_B_seq, stride_B_token, stride_B_group, stride_B_state,
    stride_C_seq, stride_C_token, stride_C_group, stride_C_state,
    stride_state_block, stride_state_head: tl.constexpr,
    stride_state_row: tl.constexpr, stride_state_state: tl.constexpr,
    stride_z_seq, stride_z_token, stride_z_head, stride_z_row,
    stride_out_seq, stride_out_token, stride_out_head, stride_out_row,
    # meta-parameters
    HEADS_PER_GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr,
    NUM_NEW: tl.constexpr, DT_SOFTPLUS: tl.constexpr, INDEX: tl.constexpr, TILES: tl.constexpr,
    BLOCK_M: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """`TILES` tiles of rows of one head of one sequence."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first_row = tl.program_id(2) * (TILES * BLOCK_M)
    out_ptr += sequence * stride_out_seq + head * stride_out_head
    block = load_block(state_indices_ptr, tl.program_id(0), NUM_BLOCKS)
    if block <= 0:
        offs_m = first_row + tl.arange(0, TILES * BLOCK_M)
        out_rows = out_ptr + offs_m.to(tl.int64) * stride_out_row
        store_zeros(out_rows, stride_out_token, NUM_NEW, offs_m < HEAD_DIM)
        return

    offs_n = tl.arange(0, BLOCK_N)[None, :]
    group = head // HEADS_PER_GROUP
    states = offs_n.to(tl.int64)
    ssm_state_ptr += block * stride_state_block + head * stride_state_head
    x_ptr += sequence * stride_x_seq + head * stride_x_head
    dt_ptr += sequence * stride_dt_seq + head * stride_dt_head
    B_ptr += sequence * stride_B_seq + group * stride_B_group + states * stride_B_state
    C_ptr += sequence * stride_C_seq + group * stride_C_group + states * stride_C_state
    if z_ptr is not None:
        z_ptr += sequence * stride_z_seq + head * stride_z_head
    if NUM_NEW == 1:
        step, decay, B, C = load_inputs(
            dt_ptr, dt_bias_ptr, A_ptr, B_ptr, C_ptr, stride_B_state, stride_C_state, head,
            DT_SOFTPLUS, D_STATE, PARTS, BLOCK_N,
        )  # fmt: skip
    if D_ptr is not None:
        D = widened(tl.load(D_ptr + head))
    for tile in range(TILES):
        offs_m = first_row + tile * BLOCK_M + tl.arange(0, BLOCK_M)
        # the compiler drops a mask that is all true
        mask_m = tl.full([BLOCK_M], True, tl.int1)
        if HEAD_DIM % (TILES * BLOCK_M) != 0:
            mask_m = offs_m < HEAD_DIM
        inner = offs_m.to(INDEX)[:, None] * stride_state_row + offs_n.to(INDEX) * stride_state_state
        state_ptrs = ssm_state_ptr + inner
        state = load_parts(state_ptrs, stride_state_state, mask_m, D_STATE, PARTS, BLOCK_N)
        rows = offs_m.to(tl.int64)
        for t in range(NUM_NEW):
            token = tl.cast(t, tl.int64)
            if NUM_NEW > 1:
                step, decay, B, C = load_inputs(
                    dt_ptr + token * stride_dt_token, dt_bias_ptr, A_ptr,
                    B_ptr + token * stride_B_token, C_ptr + token * stride_C_token,
                    stride_B_state, stride_C_state, head, DT_SOFTPLUS, D_STATE, PARTS, BLOCK_N,
                )  # fmt: skip
            x_rows = x_ptr + token * stride_x_token + rows * stride_x_row
            x = widened(tl.load(x_rows, mask=mask_m, other=0.0))
            added = (step * x)[:, None]
            products, advanced = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), ()
            for part in tl.static_range(PARTS):
                advanced += (state[part] * decay + added * B[part],)  # [BLOCK_M, BLOCK_N]
                products += advanced[part] * C[part]
            state, y = advanced, tl.sum(products, axis=1)
            if D_ptr is not None:
                y += D * x
            if z_ptr is not None:
                z_rows = z_ptr + token * stride_z_token + rows * stride_z_row
                y *= silu(widened(tl.load(z_rows, mask=mask_m, other=0.0)))
            out_rows = out_ptr + token * stride_out_token + rows * stride_out_row
            tl.store(out_rows, y.to(out_ptr.dtype.element_ty), mask=mask_m)
        store_parts(state_ptrs, stride_state_state, state, mask_m, D_STATE, PARTS, BLOCK_N)


def ssd_state_update(
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
    """See `blockstride.kernels.ssd_state_update`, which validates."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if result.numel() == 0:
        return result
    num_new = x.shape[1] if x.dim() == 4 else 1
    if x.dim() == 3:
        x, dt, B, C = x[:, None], dt[:, None], B[:, None], C[:, None]
        z = None if z is None else z[:, None]
    rows = result if result.dim() == 4 else result[:, None]
    num_seqs, _, num_heads, head_dim = x.shape
    d_state = B.shape[3]
    states = next_power_of_2(d_state)
    block_n = min(states, PART_BYTES // ssm_state.element_size())
    block_m = min(next_power_of_2(head_dim), max(1, TILE_STATES // states))
    tiles = next_power_of_2(-(-head_dim // block_m))
    while tiles > 1 and num_seqs * num_heads * -(-head_dim // (tiles * block_m)) < ENOUGH_PROGRAMS:
        tiles //= 2
    grid = (num_seqs, num_heads, -(-head_dim // (tiles * block_m)))
    A, state_indices, D, dt_bias = dense(A, state_indices, D, dt_bias)
    ssd_state_update_kernel[grid](
        x, dt, A, B, C, ssm_state, state_indices, D, z, dt_bias, rows,
        *x.stride(), *dt.stride(), *B.stride(), *C.stride(), *ssm_state.stride(),
        *strides_of(z, 4), *rows.stride(),
        HEADS_PER_GROUP=num_heads // B.shape[2], HEAD_DIM=head_dim, D_STATE=d_state,
        NUM_NEW=num_new, DT_SOFTPLUS=dt_softplus, INDEX=index_dtype(2, ssm_state),
        TILES=tiles, BLOCK_M=block_m, PARTS=states // block_n, BLOCK_N=block_n,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]), num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    return result
