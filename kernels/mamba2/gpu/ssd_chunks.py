"""States of Mamba-2 between chunks: decays of all tokens, what chunks add, and the carry.

Decays are products of `exp(A * step)`, hence differences of a running sum of `A * step` within the
chunk, in powers of two. The sum is kept as two: multiples of 2**-8, whose sums are exact, and what
is left, whose sums are small. So a difference is exact to 2**-24 although the sum may be large, and
no exponential is of a positive number. A token that decays everything to zero counts as 2**-192.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E, softplus
from blockstride.kernels.common.gpu.decays import split_sum
from blockstride.kernels.common.gpu.sequence_chunks import find_chunk, find_slot
from blockstride.kernels.common.gpu.state_blocks import load_block

# times any rate still a number
LONGEST: tl.constexpr = tl.constexpr(1e30)


@triton.jit(do_not_specialize=["num_seqs"])
def ssd_decay_kernel(
    dt_ptr, A_ptr, dt_bias_ptr, query_start_loc_ptr, step_ptr, high_ptr, low_ptr,
    # sizes
    num_seqs, num_heads,
    # strides, in elements
    stride_dt_token, stride_dt_head,
    # meta-parameters
    DT_SOFTPLUS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Steps of a chunk's tokens and the running sums of their decays, for some heads."""
    head_blocks = tl.cdiv(num_heads, BLOCK_H)
    slot = tl.program_id(0) // head_blocks
    _, begin, end, _, _ = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    if begin >= end:
        return
    offs_h = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_t = tl.arange(0, CHUNK)
    mask_h = offs_h < num_heads
    mask = mask_h[:, None] & (begin + offs_t < end)[None, :]
    places = dt_ptr + (begin + offs_t).to(tl.int64)[None, :] * stride_dt_token
    places += offs_h.to(tl.int64)[:, None] * stride_dt_head
    step = tl.load(places, mask=mask, other=0.0).to(tl.float32)  # [BLOCK_H, CHUNK]
    if dt_bias_ptr is not None:
        bias = tl.load(dt_bias_ptr + offs_h, mask=mask_h, other=0.0).to(tl.float32)
        step += bias[:, None]
    if DT_SOFTPLUS:
        step = softplus(step)
    # no infinity, or a weight of zero times it would be NaN for the tokens before; a NaN stays one
    step = tl.minimum(step, LONGEST, propagate_nan=tl.PropagateNan.ALL)
    rate = tl.load(A_ptr + offs_h, mask=mask_h, other=0.0).to(tl.float32) * LOG2_E
    high, low = split_sum(step * rate[:, None])
    rows = (slot.to(tl.int64) * num_heads + offs_h) * CHUNK
    offsets = rows[:, None] + offs_t[None, :]
    tl.store(step_ptr + offsets, step, mask=mask_h[:, None])
    tl.store(high_ptr + offsets, high, mask=mask_h[:, None])
    tl.store(low_ptr + offsets, low, mask=mask_h[:, None])


@triton.jit
def tile_of_state(
    tile, HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows, states and mask of one tile of a head's state."""
    tiles_n: tl.constexpr = (D_STATE + BLOCK_N - 1) // BLOCK_N
    offs_p = tile // tiles_n * BLOCK_P + tl.arange(0, BLOCK_P)
    offs_n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    return offs_p, offs_n, (offs_p < HEAD_DIM)[:, None] & (offs_n < D_STATE)[None, :]


@triton.jit
def added_state(
    x_ptr, B_ptr, step_ptr, high_ptr, low_ptr, begin, end, offs_p, offs_n,
    stride_x_token, stride_x_dim, stride_B_token, stride_B_state,
    HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """What the tokens from `begin` to `end` of a chunk add to the state after the last of them.

    Pointers to steps and sums are to those of the chunk's first token, which `begin` is.
    """
    high_end = tl.load(high_ptr + (end - begin - 1))
    low_end = tl.load(low_ptr + (end - begin - 1))
    x_columns = offs_p.to(tl.int64)[None, :] * stride_x_dim
    b_columns = offs_n.to(tl.int64)[None, :] * stride_B_state
    acc = tl.zeros([offs_p.shape[0], offs_n.shape[0]], tl.float32)
    for first in tl.range(0, end - begin, BLOCK_T):
        offs_t = first + tl.arange(0, BLOCK_T)
        mask_t = begin + offs_t < end
        tokens = (begin + offs_t).to(tl.int64)
        step = tl.load(step_ptr + offs_t, mask=mask_t, other=0.0)
        high = tl.load(high_ptr + offs_t, mask=mask_t, other=0.0)
        low = tl.load(low_ptr + offs_t, mask=mask_t, other=0.0)
        log_decay = tl.where(mask_t, (high_end - high) + (low_end - low), 0.0)
        weight = tl.math.exp2(log_decay) * step
        x = tl.load(
            x_ptr + tokens[:, None] * stride_x_token + x_columns,
            mask=mask_t[:, None] & (offs_p < HEAD_DIM)[None, :],
            other=0.0,
        )
        b = tl.load(
            B_ptr + tokens[:, None] * stride_B_token + b_columns,
            mask=mask_t[:, None] & (offs_n < D_STATE)[None, :],
            other=0.0,
        )
        x = (x.to(tl.float32) * weight[:, None]).to(b.dtype)  # [BLOCK_T, BLOCK_P]
        acc = tl.dot(x.T, b, acc, input_precision=PRECISION)
    return acc, high_end + low_end


@triton.jit(do_not_specialize=["num_seqs"])
def ssd_state_kernel(
    x_ptr, B_ptr, state_indices_ptr, query_start_loc_ptr, step_ptr, high_ptr, low_ptr, carry_ptr,
    # sizes
    num_seqs,
    # strides, in elements
    stride_x_token, stride_x_head, stride_x_dim,
    stride_B_token, stride_B_group, stride_B_state,
    # meta-parameters
    NUM_HEADS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    D_STATE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """What a chunk adds to an empty state, for a tile of one head's."""
    slot, head = tl.program_id(0) // NUM_HEADS, tl.program_id(0) % NUM_HEADS
    sequence, begin, end, _, _ = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    if begin >= end:
        return
    if tl.load(state_indices_ptr + sequence) <= 0:
        return
    offs_p, offs_n, mask = tile_of_state(tl.program_id(1), HEAD_DIM, D_STATE, BLOCK_P, BLOCK_N)
    row = slot.to(tl.int64) * NUM_HEADS + head
    acc, _ = added_state(
        x_ptr + head.to(tl.int64) * stride_x_head,
        B_ptr + (head // HEADS_PER_GROUP).to(tl.int64) * stride_B_group,
        step_ptr + row * CHUNK, high_ptr + row * CHUNK, low_ptr + row * CHUNK,
        begin, end, offs_p, offs_n,
        stride_x_token, stride_x_dim, stride_B_token, stride_B_state,
        HEAD_DIM, D_STATE, PRECISION, BLOCK_T,
    )  # fmt: skip
    carry_ptr += row * (HEAD_DIM * D_STATE)
    tl.store(carry_ptr + offs_p[:, None] * D_STATE + offs_n[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["num_seqs"])
def ssd_checkpoint_kernel(
    x_ptr, B_ptr, ssm_state_ptr, state_indices_ptr, query_start_loc_ptr,
    checkpoint_tokens_ptr, checkpoint_indices_ptr, step_ptr, high_ptr, low_ptr, carry_ptr,
    # sizes
    num_seqs,
    # strides, in elements
    stride_x_token, stride_x_head, stride_x_dim,
    stride_B_token, stride_B_group, stride_B_state,
    stride_state_block, stride_state_head, stride_state_dim, stride_state_state,
    # meta-parameters
    NUM_HEADS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    D_STATE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """The state after a checkpoint, from the one its chunk begins with, for a tile of a head's."""
    checkpoint, head = tl.program_id(0) // NUM_HEADS, tl.program_id(0) % NUM_HEADS
    token = tl.load(checkpoint_tokens_ptr + checkpoint)
    block = tl.load(checkpoint_indices_ptr + checkpoint).to(tl.int64)
    if NUM_BLOCKS is not None:
        tl.device_assert(block < NUM_BLOCKS, "checkpoint_indices: a block past the pool")
    # past the last sequence it is padding, as it is past the last token
    if (token >= tl.load(query_start_loc_ptr + num_seqs)) | (block <= 0):
        return
    slot = find_slot(query_start_loc_ptr, token, num_seqs, CHUNK)
    sequence, begin, _, _, _ = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    if tl.load(state_indices_ptr + sequence) <= 0:
        return
    offs_p, offs_n, mask = tile_of_state(tl.program_id(1), HEAD_DIM, D_STATE, BLOCK_P, BLOCK_N)
    row = slot.to(tl.int64) * NUM_HEADS + head
    acc, log_decay = added_state(
        x_ptr + head.to(tl.int64) * stride_x_head,
        B_ptr + (head // HEADS_PER_GROUP).to(tl.int64) * stride_B_group,
        step_ptr + row * CHUNK, high_ptr + row * CHUNK, low_ptr + row * CHUNK,
        begin, token + 1, offs_p, offs_n,
        stride_x_token, stride_x_dim, stride_B_token, stride_B_state,
        HEAD_DIM, D_STATE, PRECISION, BLOCK_T,
    )  # fmt: skip
    carry_ptr += row * (HEAD_DIM * D_STATE)
    carry = tl.load(carry_ptr + offs_p[:, None] * D_STATE + offs_n[None, :], mask=mask, other=0.0)
    acc += tl.math.exp2(log_decay) * carry
    page_ptr = ssm_state_ptr + block * stride_state_block + head.to(tl.int64) * stride_state_head
    inner = offs_p.to(INDEX)[:, None] * stride_state_dim
    inner += offs_n.to(INDEX)[None, :] * stride_state_state
    tl.store(page_ptr + inner, acc.to(ssm_state_ptr.dtype.element_ty), mask=mask)


@triton.jit
def ssd_carry_kernel(
    ssm_state_ptr, state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    high_ptr, low_ptr, carry_ptr,
    # sizes
    num_heads,
    # strides, in elements
    stride_state_block, stride_state_head, stride_state_dim, stride_state_state,
    # meta-parameters
    HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr, CHUNK: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Walk a sequence's chunks: where each left what it adds, leave the state it begins with."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    start = tl.load(query_start_loc_ptr + sequence)
    length = tl.load(query_start_loc_ptr + sequence + 1) - start
    if (block <= 0) | (length <= 0):
        return
    offs_p = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    offs_n = tl.arange(0, BLOCK_N)
    mask = (offs_p < HEAD_DIM)[:, None] & (offs_n < D_STATE)[None, :]
    page_ptr = ssm_state_ptr + block * stride_state_block + head.to(tl.int64) * stride_state_head
    inner = offs_p.to(INDEX)[:, None] * stride_state_dim
    inner += offs_n.to(INDEX)[None, :] * stride_state_state
    is_initial = tl.load(has_initial_state_ptr + sequence)
    state = tl.load(page_ptr + inner, mask=mask & is_initial, other=0.0).to(tl.float32)
    row = (start // CHUNK + sequence).to(tl.int64) * num_heads + head
    for first in tl.range(0, length, CHUNK):
        places = carry_ptr + row * (HEAD_DIM * D_STATE)
        places += offs_p[:, None] * D_STATE + offs_n[None, :]
        added = tl.load(places, mask=mask, other=0.0)
        # a state is stored where another thread has yet to read
        tl.debug_barrier()
        tl.store(places, state, mask=mask)
        last = row * CHUNK + tl.minimum(length - first, CHUNK) - 1
        decay = tl.math.exp2(tl.load(high_ptr + last) + tl.load(low_ptr + last))
        state = decay * state + added
        row += num_heads
    tl.store(page_ptr + inner, state.to(ssm_state_ptr.dtype.element_ty), mask=mask)
