"""The real-gated linear recurrent unit over prompts, token by token in registers.

A program has 64 channels of one sequence, or of one chunk of it, and walks the tokens eight at a
time. Where sequences times channels would leave processors idle, sequences are cut into chunks and
run in two launches: what each chunk makes of an empty state, with the logarithm of its decay; then
all chunks at once, each of which first folds what the chunks before it made.

Bytes per token and channel: x, both gates and z read and the output written, once; in chunks x and
the gates twice. States stay in registers, in float32. Source: De et al., "Griffin", 2.4 and A.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.launching import (
    assertions,
    count_processors,
    dense,
    strides_of,
)
from blockstride.kernels.common.gpu.rows import load_vector
from blockstride.kernels.common.gpu.sequence_chunks import (
    channels_of,
    choose_chunk,
    count_below,
    find_chunk,
    find_range,
    find_run,
    num_slots,
)
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.lru.gpu.gates import fold, load_rates
from blockstride.kernels.lru.gpu.walk import UNROLL, advance, write_outputs

# of a program, which is one warp: two a lane
CHANNELS = 64


@triton.jit
def fold_chunks(begins_ptr, decays_ptr, slot, count, dim, offs, mask):
    """The state with which the chunk of a slot begins, from those of its sequence up to it."""
    state = tl.zeros(offs.shape, tl.float32)
    for earlier in tl.range(slot - count, slot + 1):
        row = tl.cast(earlier, tl.int64) * dim + offs
        log_decay = tl.load(decays_ptr + row, mask=mask, other=0.0)
        state = fold(state, log_decay, tl.load(begins_ptr + row, mask=mask, other=0.0))
    return state


@triton.jit(do_not_specialize=["num_seqs"])
def chunk_state_kernel(
    x_ptr, recurrence_ptr, input_ptr, A_ptr, ssm_state_ptr,
    state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    recurrence_bias_ptr, input_bias_ptr, begins_ptr, decays_ptr,
    # sizes
    num_seqs, dim,
    # strides, in elements
    stride_x_token, stride_x_channel, stride_recurrence_token, stride_recurrence_channel,
    stride_input_token, stride_input_channel, stride_state_block, stride_state_channel,
    # meta-parameters
    CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """What a chunk makes of an empty state, and its decay, left for the chunk after it.

    The first chunk of a sequence also leaves what it begins with itself, since its page may have
    been written by the time that its outputs are made.
    """
    slot, offs = channels_of(dim, BLOCK_D)
    sequence, begin, end, start, stop = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    if (begin >= stop) | (block <= 0):
        return
    mask, channels = offs < dim, offs.to(tl.int64)
    row = slot.to(tl.int64) * dim + offs
    is_initial = tl.load(has_initial_state_ptr + sequence)
    if begin == start:
        page_ptrs = ssm_state_ptr + block * stride_state_block + channels * stride_state_channel
        state = tl.load(page_ptrs, mask=mask & is_initial, other=0.0).to(tl.float32)
        tl.store(begins_ptr + row, state, mask=mask)
        tl.store(decays_ptr + row, tl.zeros([BLOCK_D], tl.float32), mask=mask)
    if end >= stop:
        return
    rates = load_rates(A_ptr, offs, mask)
    recurrence_bias = load_vector(recurrence_bias_ptr, offs, mask)
    input_bias = load_vector(input_bias_ptr, offs, mask)
    x_ptrs = x_ptr + channels * stride_x_channel
    recurrence_ptrs = recurrence_ptr + channels * stride_recurrence_channel
    input_ptrs = input_ptr + channels * stride_input_channel
    state, total = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
    for first in tl.range(begin, end, UNROLL):
        states, total = advance(
            state, total, x_ptrs, recurrence_ptrs, input_ptrs, rates, recurrence_bias, input_bias,
            first, end, tl.where(is_initial, -1, start), mask,
            stride_x_token, stride_recurrence_token, stride_input_token,
        )  # fmt: skip
        state = states[UNROLL - 1]
    tl.store(begins_ptr + row + dim, state, mask=mask)
    tl.store(decays_ptr + row + dim, total, mask=mask)


@triton.jit(do_not_specialize=["num_tokens", "num_seqs", "num_checkpoints"])
def rg_lru_kernel(
    x_ptr, recurrence_ptr, input_ptr, A_ptr, ssm_state_ptr,
    state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    recurrence_bias_ptr, input_bias_ptr, z_ptr, checkpoint_tokens_ptr, checkpoint_indices_ptr,
    begins_ptr, decays_ptr, out_ptr,
    # sizes
    num_seqs, num_tokens, num_checkpoints, dim,
    # strides, in elements
    stride_x_token, stride_x_channel, stride_recurrence_token, stride_recurrence_channel,
    stride_input_token, stride_input_channel, stride_state_block, stride_state_channel,
    stride_z_token, stride_z_channel, stride_out_token, stride_out_channel,
    # meta-parameters
    CHUNK: tl.constexpr, BLOCK_D: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some channels of a sequence or a chunk: outputs, checkpoints, and the last state."""
    slot, offs = channels_of(dim, BLOCK_D)
    sequence, begin, end, stop = find_range(query_start_loc_ptr, slot, num_seqs, num_tokens, CHUNK)
    if begin >= end:
        return
    mask, channels = offs < dim, offs.to(tl.int64)
    out_ptrs = out_ptr + channels * stride_out_channel
    # it is held over all tokens, in one register
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS, num_seqs).to(tl.int32)
    if block <= 0:
        zeros = ()
        for _ in tl.static_range(UNROLL):
            zeros += (tl.zeros([BLOCK_D], tl.float32),)
        for first in tl.range(begin, end, UNROLL):
            write_outputs(zeros, None, out_ptrs, first, end, mask, 0, stride_out_token)
        return

    rates = load_rates(A_ptr, offs, mask)
    recurrence_bias = load_vector(recurrence_bias_ptr, offs, mask)
    input_bias = load_vector(input_bias_ptr, offs, mask)
    x_ptrs = x_ptr + channels * stride_x_channel
    recurrence_ptrs = recurrence_ptr + channels * stride_recurrence_channel
    input_ptrs = input_ptr + channels * stride_input_channel
    z_ptrs = z_ptr
    if z_ptr is not None:
        z_ptrs = z_ptr + channels * stride_z_channel
    state_ptrs = ssm_state_ptr + channels * stride_state_channel
    is_initial = tl.load(has_initial_state_ptr + sequence)
    start = tl.load(query_start_loc_ptr + sequence)
    if CHUNK > 0:
        count = (begin - start) // CHUNK
        state = fold_chunks(begins_ptr, decays_ptr, slot, count, dim, offs, mask)
    else:
        page_ptrs = state_ptrs + block.to(tl.int64) * stride_state_block
        state = tl.load(page_ptrs, mask=mask & is_initial, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_D], tl.float32)

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
            states, total = advance(
                state, total, x_ptrs, recurrence_ptrs, input_ptrs, rates, recurrence_bias,
                input_bias, first, run_end, tl.where(is_initial, -1, start), mask,
                stride_x_token, stride_recurrence_token, stride_input_token,
            )  # fmt: skip
            state = states[UNROLL - 1]
            write_outputs(
                states, z_ptrs, out_ptrs, first, run_end, mask, stride_z_token, stride_out_token
            )
        token_0 = run_end
        page_ptrs = state_ptrs + target.to(tl.int64) * stride_state_block
        element = ssm_state_ptr.dtype.element_ty
        tl.store(page_ptrs, state.to(element), mask=mask & (target > 0))


def rg_lru(
    x: Tensor,
    recurrence_gate: Tensor,
    input_gate: Tensor,
    A: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    recurrence_bias: Tensor | None = None,
    input_bias: Tensor | None = None,
    z: Tensor | None = None,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """See `blockstride.kernels.rg_lru`, which validates and describes the arguments.

    `chunk_size` is the number of tokens that one program walks, a power of two of at least 8; 0
    leaves sequences whole; if not given, the size of the device decides. It changes how sums are
    rounded, and nothing else.
    """
    (num_tokens, dim), (num_seqs,) = x.shape, state_indices.shape
    if out is None:
        out = x.new_empty(x.shape)
    if num_tokens == 0 or num_seqs == 0 or dim == 0:
        return out.zero_()
    channel_blocks = -(-dim // CHANNELS)
    if chunk_size is None:
        programs = num_seqs * channel_blocks
        chunk_size = choose_chunk(num_tokens, num_seqs, programs, count_processors(x.device))
    A, state_indices, query_start_loc, has_initial_state = dense(
        A, state_indices, query_start_loc, has_initial_state
    )
    biases = dense(recurrence_bias, input_bias)
    checkpoint_tokens, checkpoint_indices = dense(checkpoint_tokens, checkpoint_indices)
    inputs = (x, recurrence_gate, input_gate, A, ssm_state)
    batch = (state_indices, query_start_loc, has_initial_state)
    strides = (
        *x.stride(), *recurrence_gate.stride(), *input_gate.stride(), *ssm_state.stride()
    )  # fmt: skip
    meta = {
        "CHUNK": chunk_size,
        "BLOCK_D": CHANNELS,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]),
        "num_warps": 1,
        "enable_fp_fusion": True,
    }
    # the tokens behind the last sequence are one more
    slots, begins, decays = num_seqs + 1, None, None
    if chunk_size > 0:
        slots = num_slots(num_tokens, num_seqs, chunk_size)
        begins, decays = x.new_empty((2, slots, dim), dtype=torch.float32)
        chunk_state_kernel[(channel_blocks * slots,)](
            *inputs, *batch, *biases, begins, decays, num_seqs, dim, *strides, **meta
        )
        slots = num_slots(num_tokens, num_seqs + 1, chunk_size)
    num_checkpoints = 0 if checkpoint_tokens is None else checkpoint_tokens.shape[0]
    rg_lru_kernel[(channel_blocks * slots,)](
        *inputs, *batch, *biases, z, checkpoint_tokens, checkpoint_indices, begins, decays, out,
        num_seqs, num_tokens, num_checkpoints, dim,
        *strides, *strides_of(z, 2), *out.stride(), **meta,
    )  # fmt: skip
    return out
