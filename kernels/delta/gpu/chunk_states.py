"""What a chunk of the gated delta rule does to a state, and the state to its outputs."""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.rows import load_rows, store_rows
from blockstride.kernels.common.gpu.sequence_chunks import count_below
from blockstride.kernels.delta.gpu.channel_checkpoints import state_at_checkpoint
from blockstride.kernels.delta.gpu.channel_gates import load_decayed, state_at_end
from blockstride.kernels.delta.gpu.gated_delta_chunks import load_decays
from blockstride.kernels.delta.gpu.keys import load_keys


@triton.jit
def load_keys_and_queries(
    k_ptr, q_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim,
    stride_q_token, stride_q_dim, KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr,
):  # fmt: skip
    """Keys and queries of a chunk."""
    k = load_keys(k_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim, KEY_DIM, L2_NORM)
    q = load_keys(q_ptr, tokens, offs_k, mask_t, stride_q_token, stride_q_dim, KEY_DIM, L2_NORM)
    return k, q


@triton.jit
def state_after(
    state, k, change, high, low, row, offs_t, PRECISION: tl.constexpr
):  # fmt: skip
    """The state after token `row` of a chunk, from the one before the chunk and the changes."""
    is_row = offs_t == row
    high_row = tl.sum(tl.where(is_row, high, 0.0))
    low_row = tl.sum(tl.where(is_row, low, 0.0))
    log_decay = (high_row - high) + (low_row - low)
    weight = tl.math.exp2(tl.where(offs_t <= row, log_decay, float("-inf")))
    weighted = (k.to(tl.float32) * weight[:, None]).to(k.dtype)
    state *= tl.math.exp2(high_row + low_row)
    return tl.dot(weighted.T, change, state, input_precision=PRECISION)


@triton.jit
def keep_states(
    state, k, change, high, low, kept_ptr, kept_passed_ptr, value_head,
    checkpoint_tokens_ptr, checkpoint_indices_ptr, num_checkpoints,
    first, end, states_ptr, mask, stride_state_block, offs_t, offs_k,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, PRECISION: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the state after each checkpoint of a chunk to its block, from the one before it.

    Decays are running sums where gates are those of heads; `high` is `None` for those of channels.
    """
    if checkpoint_tokens_ptr is not None:
        checkpoint = count_below(checkpoint_tokens_ptr, num_checkpoints, first)
        last = count_below(checkpoint_tokens_ptr, num_checkpoints, end)
        for index in tl.range(checkpoint, last):
            row = tl.load(checkpoint_tokens_ptr + index) - first
            target = tl.load(checkpoint_indices_ptr + index).to(tl.int64)
            if NUM_BLOCKS is not None:
                tl.device_assert(target < NUM_BLOCKS, "checkpoint_indices: a block past the pool")
            if high is None:
                kept = state_at_checkpoint(
                    state, change, kept_ptr, kept_passed_ptr, index, value_head, offs_t, offs_k,
                    NUM_VALUE_HEADS, KEY_DIM, PRECISION,
                )  # fmt: skip
            else:
                kept = state_after(state, k, change, high, low, row, offs_t, PRECISION)
            kept = kept.to(states_ptr.dtype.element_ty)
            tl.store(states_ptr + target * stride_state_block, kept, mask=mask & (target > 0))


@triton.jit
def changes_of(state, k, v, beta, decay, solved, PRECISION: tl.constexpr):
    """What a chunk's tokens change in the state, each by its key.

    Without `decay` it is in the keys already.
    """
    predicted = tl.dot(k, state.to(k.dtype), input_precision=PRECISION)
    if decay is not None:
        predicted = decay * predicted
    error = beta.to(tl.float32)[:, None] * (v.to(tl.float32) - predicted)
    return tl.dot(solved, error.to(k.dtype), input_precision=PRECISION).to(k.dtype)


@triton.jit
def outputs_of(state, q, change, decay, scores, scale, PRECISION: tl.constexpr):
    """What a chunk's queries find, in the state before the chunk and in its changes."""
    if decay is not None:
        scale = decay * scale
    y = scale * tl.dot(q, state.to(q.dtype), input_precision=PRECISION)
    return tl.dot(scores, change, y, input_precision=PRECISION)


@triton.jit
def advance_chunk(
    state, q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, states_ptr, checkpoint_tokens_ptr,
    checkpoint_indices_ptr, inverse_ptr, scores_ptr, decayed_ptr, passed_ptr, kept_ptr,
    kept_passed_ptr, out_ptr, first, stop, place, value_head, num_tokens, num_checkpoints, scale,
    offs_t, offs_k, offs_v, mask_state, stride_q_token, stride_q_dim, stride_k_token, stride_k_dim,
    stride_v_token, stride_v_dim, stride_g_token, stride_beta_token, stride_state_block,
    stride_out_token, stride_out_dim, NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, L2_NORM: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the outputs of a chunk and the states that checkpoints ask for; the state after it."""
    mask_t = first + offs_t < stop
    square = offs_t[:, None] * CHUNK + offs_t[None, :]
    tokens = (first + offs_t).to(tl.int64)
    # queries are loaded where registers are left for them
    if decayed_ptr is None:
        k, q = load_keys_and_queries(
            k_ptr, q_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim,
            stride_q_token, stride_q_dim, KEY_DIM, L2_NORM,
        )  # fmt: skip
    else:
        k = load_decayed(
            decayed_ptr, 0, tokens, num_tokens, value_head, offs_k, mask_t, NUM_VALUE_HEADS,
            KEY_DIM,
        )  # fmt: skip
    v = load_rows(v_ptr, tokens, offs_v, mask_t, stride_v_token, stride_v_dim, VALUE_DIM)
    beta = tl.load(beta_ptr + tokens * stride_beta_token, mask=mask_t, other=0.0)
    high, low, decay = None, None, None
    if decayed_ptr is None:
        high, low = load_decays(g_ptr, tokens, mask_t, stride_g_token)
        decay = tl.math.exp2(high + low)[:, None]
    solved = tl.load(inverse_ptr + place * (CHUNK * CHUNK) + square)
    change = changes_of(state, k, v, beta, decay, solved, PRECISION)
    if decayed_ptr is not None:
        q = load_decayed(
            decayed_ptr, 1, tokens, num_tokens, value_head, offs_k, mask_t, NUM_VALUE_HEADS,
            KEY_DIM,
        )  # fmt: skip
    scores = tl.load(scores_ptr + place * (CHUNK * CHUNK) + square)
    y = outputs_of(state, q, change, decay, scores, scale, PRECISION)
    store_rows(
        y, out_ptr, tokens, offs_v, mask_t, stride_out_token, stride_out_dim, VALUE_DIM
    )  # fmt: skip
    end = tl.minimum(first + CHUNK, stop)
    keep_states(
        state, k, change, high, low, kept_ptr, kept_passed_ptr, value_head,
        checkpoint_tokens_ptr, checkpoint_indices_ptr, num_checkpoints,
        first, end, states_ptr, mask_state, stride_state_block, offs_t, offs_k,
        NUM_VALUE_HEADS, KEY_DIM, PRECISION, NUM_BLOCKS,
    )  # fmt: skip
    if decayed_ptr is None:
        state = state_after(state, k, change, high, low, end - first - 1, offs_t, PRECISION)
    else:
        state = state_at_end(
            state, change, decayed_ptr, passed_ptr + place * KEY_DIM, tokens, num_tokens,
            value_head, offs_k, mask_t, NUM_VALUE_HEADS, KEY_DIM, PRECISION,
        )  # fmt: skip
    return state
