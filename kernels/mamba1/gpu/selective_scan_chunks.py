"""States of Mamba-1 between chunks: what each chunk adds to an empty state, and the carry.

A program has some channels of one chunk, or of one sequence, with all their states.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E, softplus
from blockstride.kernels.common.gpu.rows import load_vector
from blockstride.kernels.common.gpu.sequence_chunks import channels_of, find_chunk
from blockstride.kernels.common.gpu.state_blocks import load_block

# tokens whose loads are in flight together
UNROLL: tl.constexpr = tl.constexpr(8)
# times any step that is not 0 it decays everything
LOWEST_RATE: tl.constexpr = tl.constexpr(-3e38)


@triton.jit
def load_step(dt_ptr, bias, mask, DT_SOFTPLUS: tl.constexpr):
    """A token's step of each channel; zero where there is no token, which changes no state."""
    step = tl.load(dt_ptr, mask=mask, other=0.0).to(tl.float32) + bias
    if DT_SOFTPLUS:
        step = softplus(step)
    return tl.where(mask, step, 0.0)


@triton.jit
def load_rates(A_ptr, offs_d, offs_n, mask, stride_channel, stride_state):
    """Decay rates in powers of two; finite, as a step of 0 must decay nothing."""
    offsets = offs_d.to(tl.int64)[:, None] * stride_channel
    offsets += offs_n.to(tl.int64)[None, :] * stride_state
    return tl.maximum(tl.load(A_ptr + offsets, mask=mask, other=0.0) * LOG2_E, LOWEST_RATE)


@triton.jit(do_not_specialize=["num_seqs"])
def local_state_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, state_indices_ptr, query_start_loc_ptr, dt_bias_ptr,
    carry_ptr, total_step_ptr,
    # sizes
    num_seqs, dim,
    # strides, in elements
    stride_x_token, stride_x_channel, stride_dt_token, stride_dt_channel,
    stride_A_channel, stride_A_state, stride_B_token, stride_B_state,
    # meta-parameters
    D_STATE: tl.constexpr, DT_SOFTPLUS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to an empty state, and the sum of its steps; not for a last chunk."""
    slot, offs_d = channels_of(dim, BLOCK_D)
    sequence, begin, end, _, stop = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    if (end >= stop) | (tl.load(state_indices_ptr + sequence) <= 0):
        return
    offs_n = tl.arange(0, BLOCK_N)
    mask_d, mask_n = offs_d < dim, offs_n < D_STATE
    mask = mask_d[:, None] & mask_n[None, :]
    rates = load_rates(A_ptr, offs_d, offs_n, mask, stride_A_channel, stride_A_state)
    bias = load_vector(dt_bias_ptr, offs_d, mask_d)
    x_ptr += offs_d.to(tl.int64) * stride_x_channel
    dt_ptr += offs_d.to(tl.int64) * stride_dt_channel
    B_ptr += offs_n.to(tl.int64) * stride_B_state

    state = tl.zeros([BLOCK_D, BLOCK_N], tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)
    # chunks that are not the last of their sequence are whole multiples of what is unrolled
    for first in tl.range(begin, end, UNROLL):
        token = tl.cast(first, tl.int64)
        x_row, dt_row = x_ptr + token * stride_x_token, dt_ptr + token * stride_dt_token
        b_row = B_ptr + token * stride_B_token
        for i in tl.static_range(UNROLL):  # noqa: B007 -- `_` is another thing here
            x = tl.load(x_row, mask=mask_d, other=0.0).to(tl.float32)
            step = load_step(dt_row, bias, mask_d, DT_SOFTPLUS)
            b = tl.load(b_row, mask=mask_n, other=0.0).to(tl.float32)
            decay = tl.math.exp2(step[:, None] * rates)
            state = decay * state + (step * x)[:, None] * b[None, :]
            total += step
            x_row += stride_x_token
            dt_row += stride_dt_token
            b_row += stride_B_token
    row = slot.to(tl.int64) * dim + offs_d
    tl.store(carry_ptr + row[:, None] * D_STATE + offs_n[None, :], state, mask=mask)
    tl.store(total_step_ptr + row, total, mask=mask_d)


@triton.jit
def carry_kernel(
    A_ptr, ssm_state_ptr, state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    carry_ptr, total_step_ptr,
    # sizes
    dim,
    # strides, in elements
    stride_A_channel, stride_A_state,
    stride_state_block, stride_state_channel, stride_state_state,
    # meta-parameters
    D_STATE: tl.constexpr, CHUNK: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Walk the chunks of a sequence: in place of what each adds, leave the state it begins with."""
    sequence, offs_d = channels_of(dim, BLOCK_D)
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    start = tl.load(query_start_loc_ptr + sequence)
    num_chunks = tl.cdiv(tl.load(query_start_loc_ptr + sequence + 1) - start, CHUNK)
    if (block <= 0) | (num_chunks <= 0):
        return
    offs_n = tl.arange(0, BLOCK_N)
    mask_d = offs_d < dim
    mask = mask_d[:, None] & (offs_n < D_STATE)[None, :]
    rates = load_rates(A_ptr, offs_d, offs_n, mask, stride_A_channel, stride_A_state)
    inner = offs_d.to(INDEX)[:, None] * stride_state_channel
    inner += offs_n.to(INDEX)[None, :] * stride_state_state
    is_initial = tl.load(has_initial_state_ptr + sequence)
    page_ptr = ssm_state_ptr + block * stride_state_block
    state = tl.load(page_ptr + inner, mask=mask & is_initial, other=0.0).to(tl.float32)
    slot = (start // CHUNK + sequence).to(tl.int64)
    for _ in tl.range(num_chunks - 1):
        row = slot * dim + offs_d
        places = carry_ptr + row[:, None] * D_STATE + offs_n[None, :]
        local = tl.load(places, mask=mask, other=0.0)
        total = tl.load(total_step_ptr + row, mask=mask_d, other=0.0)
        # a state is stored where another thread has yet to read
        tl.debug_barrier()
        tl.store(places, state, mask=mask)
        state = tl.math.exp2(total[:, None] * rates) * state + local
        slot += 1
    row = slot * dim + offs_d
    tl.store(carry_ptr + row[:, None] * D_STATE + offs_n[None, :], state, mask=mask)
