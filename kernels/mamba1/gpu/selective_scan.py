"""The recurrence of Mamba-1 over prompts, token by token in registers.

A program has 32 channels of one sequence, or of one chunk of it, with their states, and walks the
tokens eight at a time: the loads of the eight are independent, so they are all on their way before
the first is needed. Where sequences times channels would leave processors idle, sequences are cut
into chunks and run in three launches: the state that each chunk adds to nothing, one pass that
carries states from chunk to chunk, and the outputs of all chunks at once. That costs each
exponential, of which there are `dim * d_state` a token, twice.

Bytes per token and channel: x, dt and z read and the output written, once, or x and dt twice.
States stay in registers, in float32. Source: Gu and Dao, "Mamba", 3.3, for the recurrence; the
three passes are those of "Mamba-2", 6.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import silu
from blockstride.kernels.common.gpu.launching import (
    assertions,
    count_processors,
    dense,
    index_dtype,
    next_power_of_2,
    strides_of,
)
from blockstride.kernels.common.gpu.rows import load_vector
from blockstride.kernels.common.gpu.sequence_chunks import (
    channels_of,
    choose_chunk,
    count_below,
    find_range,
    find_run,
    num_slots,
)
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.mamba1.gpu.selective_scan_chunks import (
    UNROLL,
    carry_kernel,
    load_rates,
    load_step,
    local_state_kernel,
)

# channels and states of a program, which is one warp
CHANNELS, ELEMENTS = 32, 512


@triton.jit
def advance(
    state, rates, bias, skip, mask_d, mask_n, first, end, x_row, dt_row, b_row, c_row,
    stride_x_token, stride_dt_token, stride_B_token, stride_C_token, DT_SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """States after some tokens, from `first` on, and the outputs of these before the gate."""
    offs_t = tl.arange(0, UNROLL)
    y_tile = tl.zeros([UNROLL, mask_d.shape[0]], tl.float32)
    for i in tl.static_range(UNROLL):
        is_there = first + i < end
        x_mask, b_mask = mask_d & is_there, mask_n & is_there
        x = tl.load(x_row, mask=x_mask, other=0.0).to(tl.float32)
        step = load_step(dt_row, bias, x_mask, DT_SOFTPLUS)
        b = tl.load(b_row, mask=b_mask, other=0.0).to(tl.float32)
        c = tl.load(c_row, mask=b_mask, other=0.0).to(tl.float32)
        x_row += stride_x_token
        dt_row += stride_dt_token
        b_row += stride_B_token
        c_row += stride_C_token
        decay = tl.math.exp2(step[:, None] * rates)
        state = decay * state + (step * x)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], 1) + skip * x
        y_tile = tl.where((offs_t == i)[:, None], y[None, :], y_tile)
    return state, y_tile


@triton.jit
def write_outputs(y_tile, z_ptr, out_ptr, first, end, mask_d, stride_z_token, stride_out_token):
    """Gate the outputs of some tokens, and write those before `end`."""
    tokens = (first + tl.arange(0, UNROLL)).to(tl.int64)[:, None]
    mask = (tokens < end) & mask_d[None, :]
    if z_ptr is not None:
        gates = z_ptr[None, :] + tokens * stride_z_token
        y_tile *= silu(tl.load(gates, mask=mask, other=0.0).to(tl.float32))
    places = out_ptr[None, :] + tokens * stride_out_token
    tl.store(places, y_tile.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens", "num_seqs", "num_checkpoints"])
def selective_scan_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, ssm_state_ptr,
    state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    D_ptr, z_ptr, dt_bias_ptr, checkpoint_tokens_ptr, checkpoint_indices_ptr, carry_ptr, out_ptr,
    # sizes
    num_seqs, num_tokens, num_checkpoints, dim,
    # strides, in elements
    stride_x_token, stride_x_channel, stride_dt_token, stride_dt_channel,
    stride_A_channel, stride_A_state,
    stride_B_token, stride_B_state, stride_C_token, stride_C_state,
    stride_state_block, stride_state_channel, stride_state_state,
    stride_z_token, stride_z_channel, stride_out_token, stride_out_channel,
    # meta-parameters
    D_STATE: tl.constexpr, DT_SOFTPLUS: tl.constexpr, CHUNK: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some channels of a sequence or a chunk: outputs, checkpoints, and the last state."""
    slot, offs_d = channels_of(dim, BLOCK_D)
    sequence, begin, end, stop = find_range(query_start_loc_ptr, slot, num_seqs, num_tokens, CHUNK)
    if begin >= end:
        return
    offs_n = tl.arange(0, BLOCK_N)
    mask_d, mask_n = offs_d < dim, offs_n < D_STATE
    mask = mask_d[:, None] & mask_n[None, :]
    out_ptr += offs_d.to(tl.int64) * stride_out_channel
    # it is held over all tokens, in one register
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS, num_seqs).to(tl.int32)
    if block <= 0:
        for first in tl.range(begin, end, UNROLL):
            zeros = tl.zeros([UNROLL, BLOCK_D], tl.float32)
            write_outputs(zeros, None, out_ptr, first, end, mask_d, 0, stride_out_token)
        return

    rates = load_rates(A_ptr, offs_d, offs_n, mask, stride_A_channel, stride_A_state)
    bias = load_vector(dt_bias_ptr, offs_d, mask_d)
    skip = load_vector(D_ptr, offs_d, mask_d)
    x_ptr += offs_d.to(tl.int64) * stride_x_channel
    dt_ptr += offs_d.to(tl.int64) * stride_dt_channel
    B_ptr += offs_n.to(tl.int64) * stride_B_state
    C_ptr += offs_n.to(tl.int64) * stride_C_state
    if z_ptr is not None:
        z_ptr += offs_d.to(tl.int64) * stride_z_channel
    inner = offs_d.to(INDEX)[:, None] * stride_state_channel
    inner += offs_n.to(INDEX)[None, :] * stride_state_state
    if CHUNK > 0:
        row = slot.to(tl.int64) * dim + offs_d
        state = tl.load(carry_ptr + row[:, None] * D_STATE + offs_n[None, :], mask=mask, other=0.0)
    else:
        is_initial = tl.load(has_initial_state_ptr + sequence)
        page_ptr = ssm_state_ptr + block.to(tl.int64) * stride_state_block
        state = tl.load(page_ptr + inner, mask=mask & is_initial, other=0.0).to(tl.float32)

    # runs of tokens between checkpoints, after each of which the state goes to a page
    checkpoint = count_below(checkpoint_tokens_ptr, num_checkpoints, begin)
    last = count_below(checkpoint_tokens_ptr, num_checkpoints, end)
    token_0 = begin
    for run in tl.range(checkpoint, last + 1):
        run_end, target = find_run(
            checkpoint_tokens_ptr, checkpoint_indices_ptr, run, last, end,
            tl.where(end == stop, block, 0), NUM_BLOCKS,
        )  # fmt: skip
        for first in tl.range(token_0, run_end, UNROLL):
            token = tl.cast(first, tl.int64)
            state, y_tile = advance(
                state, rates, bias, skip, mask_d, mask_n, first, run_end,
                x_ptr + token * stride_x_token, dt_ptr + token * stride_dt_token,
                B_ptr + token * stride_B_token, C_ptr + token * stride_C_token,
                stride_x_token, stride_dt_token, stride_B_token, stride_C_token, DT_SOFTPLUS,
            )  # fmt: skip
            write_outputs(
                y_tile, z_ptr, out_ptr, first, run_end, mask_d, stride_z_token, stride_out_token
            )
        token_0 = run_end
        page_ptr = ssm_state_ptr + target.to(tl.int64) * stride_state_block
        element = ssm_state_ptr.dtype.element_ty
        tl.store(page_ptr + inner, state.to(element), mask=mask & (target > 0))


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """See `blockstride.kernels.selective_scan`, which validates and describes the arguments.

    `chunk_size` is the number of tokens that one program walks, a power of two of at least 8; 0
    leaves sequences whole; if not given, the size of the device decides. It changes how sums are
    rounded, and nothing else.
    """
    (num_tokens, dim), (num_seqs,) = x.shape, state_indices.shape
    if out is None:
        out = x.new_empty(x.shape)
    if num_tokens == 0 or num_seqs == 0:
        return out.zero_()
    d_state = A.shape[1]
    state_indices, query_start_loc, has_initial_state, D, dt_bias = dense(
        state_indices, query_start_loc, has_initial_state, D, dt_bias
    )
    checkpoint_tokens, checkpoint_indices = dense(checkpoint_tokens, checkpoint_indices)
    block_n = next_power_of_2(d_state)
    block_d = max(1, min(CHANNELS, ELEMENTS // block_n))
    channel_blocks = -(-dim // block_d)
    if chunk_size is None:
        programs = num_seqs * -(-dim // CHANNELS)
        chunk_size = choose_chunk(num_tokens, num_seqs, programs, count_processors(x.device))
    meta = {
        "D_STATE": d_state,
        "CHUNK": chunk_size,
        "BLOCK_D": block_d,
        "BLOCK_N": block_n,
        "num_warps": 1,
        "enable_fp_fusion": True,
    }
    pool = {"INDEX": index_dtype(2, ssm_state), **assertions(NUM_BLOCKS=ssm_state.shape[0])}
    # the tokens behind the last sequence are one more
    slots, carry = num_seqs + 1, None
    if chunk_size > 0:
        slots = num_slots(num_tokens, num_seqs, chunk_size)
        carry = x.new_empty((slots, dim, d_state), dtype=torch.float32)
        total_step = x.new_empty((slots, dim), dtype=torch.float32)
        local_state_kernel[(channel_blocks * slots,)](
            x, dt, A, B, state_indices, query_start_loc, dt_bias, carry, total_step,
            num_seqs, dim, *x.stride(), *dt.stride(), *A.stride(), *B.stride(),
            DT_SOFTPLUS=dt_softplus, **meta,
        )  # fmt: skip
        slots = num_slots(num_tokens, num_seqs + 1, chunk_size)
        carry_kernel[(channel_blocks * num_seqs,)](
            A, ssm_state, state_indices, query_start_loc, has_initial_state, carry, total_step,
            dim, *A.stride(), *ssm_state.stride(), **pool, **meta,
        )  # fmt: skip
    selective_scan_kernel[(channel_blocks * slots,)](
        x, dt, A, B, C, ssm_state, state_indices, query_start_loc, has_initial_state,
        D, z, dt_bias, checkpoint_tokens, checkpoint_indices, carry, out,
        num_seqs, num_tokens, 0 if checkpoint_tokens is None else checkpoint_tokens.shape[0], dim,
        *x.stride(), *dt.stride(), *A.stride(), *B.stride(), *C.stride(), *ssm_state.stride(),
        *strides_of(z, 2), *out.stride(),
        DT_SOFTPLUS=dt_softplus, **pool, **meta,
    )  # fmt: skip
    return out
