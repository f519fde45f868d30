"""What a chunk of the gated delta rule needs before any state is known.

Each token corrects what the state predicts for its key, so its correction depends on those of the
chunk's earlier tokens: `(I + L) change = beta * (v - prediction)`, with `L` strictly lower
triangular. Here `I + L` is inverted, for all chunks at once. The inverses of two diagonal blocks
are joined by `[[T, 0], [-U M T, U]]`, for all blocks of a size by two products of whole matrices.
Products of powers of `L` would be fewer, and would lose all digits where keys repeat.

Where gates are those of channels, `channel_gates` has the products, and keys and queries are handed
on with their decay.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E
from blockstride.kernels.common.gpu.decays import split_sum
from blockstride.kernels.common.gpu.sequence_chunks import find_chunk
from blockstride.kernels.delta.gpu.channel_gates import overlaps_by_channel
from blockstride.kernels.delta.gpu.keys import load_keys


@triton.jit
def load_decays(g_ptr, tokens, mask_t, stride_token):
    """Running sums of a chunk's log decays, as two numbers each."""
    g = tl.load(g_ptr + tokens * stride_token, mask=mask_t, other=0.0).to(tl.float32)
    return split_sum(g * LOG2_E)


@triton.jit
def overlaps_by_head(
    q_ptr, k_ptr, g_ptr, tokens, offs_t, mask_t,
    stride_q_token, stride_q_dim, stride_k_token, stride_k_dim, stride_g_token,
    KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """How keys, and queries, of tokens overlap with the keys of earlier ones, with the decay."""
    offs_k = tl.arange(0, BLOCK_K)
    k = load_keys(k_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim, KEY_DIM, L2_NORM)
    q = load_keys(q_ptr, tokens, offs_k, mask_t, stride_q_token, stride_q_dim, KEY_DIM, L2_NORM)
    high, low = load_decays(g_ptr, tokens, mask_t, stride_g_token)
    log_decay = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    is_there = offs_t[:, None] >= offs_t[None, :]
    decay = tl.math.exp2(tl.where(is_there, log_decay, float("-inf")))
    overlap = tl.dot(k, k.T, input_precision=PRECISION) * decay
    return overlap, tl.dot(q, k.T, input_precision=PRECISION) * decay


@triton.jit
def between_blocks(lower, row, column, SIZE: tl.constexpr):
    """What lies between the diagonal blocks of a size that are joined next."""
    is_joined = row // (2 * SIZE) == column // (2 * SIZE)
    return tl.where(is_joined & (row // SIZE > column // SIZE), lower, 0.0)


@triton.jit
def inverse(lower, row, column, PRECISION: tl.constexpr):
    """The inverse of the unit lower triangular matrix whose strictly lower part is given."""
    result = tl.where(row == column, 1.0, 0.0) - between_blocks(lower, row, column, 1)
    for level in tl.static_range(1, 8):
        if 2**level < lower.shape[0]:
            between = between_blocks(lower, row, column, 2**level)
            product = tl.dot(result, between, input_precision=PRECISION)
            result -= tl.dot(product, result, input_precision=PRECISION)
    return result


@triton.jit(do_not_specialize=["num_seqs", "num_tokens"])
def gated_delta_chunk_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, state_indices_ptr, query_start_loc_ptr,
    inverse_ptr, scores_ptr, decayed_ptr, passed_ptr,
    # sizes
    num_seqs, num_tokens, scale,
    # strides, in elements
    stride_q_token, stride_q_head, stride_q_dim,
    stride_k_token, stride_k_head, stride_k_dim,
    stride_g_token, stride_g_head, stride_g_dim, stride_beta_token, stride_beta_head,
    # meta-parameters
    NUM_VALUE_HEADS: tl.constexpr, VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr,
    L2_NORM: tl.constexpr, PRECISION: tl.constexpr, INVERSE_PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, LEVELS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A chunk's inverse, and how its outputs weigh its corrections, for one value head."""
    slot, value_head = tl.program_id(0) // NUM_VALUE_HEADS, tl.program_id(0) % NUM_VALUE_HEADS
    sequence, begin, end, _, _ = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK)
    if begin >= end:
        return
    if tl.load(state_indices_ptr + sequence) <= 0:
        return
    head = (value_head // VALUE_HEADS_PER_HEAD).to(tl.int64)
    wide_head = value_head.to(tl.int64)
    offs_t = tl.arange(0, CHUNK)
    mask_t = begin + offs_t < end
    tokens = (begin + offs_t).to(tl.int64)
    k_ptr += head * stride_k_head
    q_ptr += head * stride_q_head
    g_ptr += wide_head * stride_g_head
    beta_ptr += wide_head * stride_beta_head
    place = slot.to(tl.int64) * NUM_VALUE_HEADS + value_head
    if decayed_ptr is None:
        overlap, scores = overlaps_by_head(
            q_ptr, k_ptr, g_ptr, tokens, offs_t, mask_t,
            stride_q_token, stride_q_dim, stride_k_token, stride_k_dim, stride_g_token,
            KEY_DIM, L2_NORM, BLOCK_K, PRECISION,
        )  # fmt: skip
    else:
        overlap, scores = overlaps_by_channel(
            q_ptr, k_ptr, g_ptr, decayed_ptr, passed_ptr + place * KEY_DIM, tokens, num_tokens,
            wide_head, offs_t, mask_t, stride_q_token, stride_q_dim, stride_k_token, stride_k_dim,
            stride_g_token, stride_g_dim, NUM_VALUE_HEADS, KEY_DIM, L2_NORM, BLOCK_K, LEVELS,
            PRECISION,
        )  # fmt: skip
    beta = tl.load(beta_ptr + tokens * stride_beta_token, mask=mask_t, other=0.0).to(tl.float32)
    row, column = offs_t[:, None], offs_t[None, :]
    offsets = place * (CHUNK * CHUNK) + row * CHUNK + column
    tl.store(scores_ptr + offsets, (scores * scale).to(scores_ptr.dtype.element_ty))
    result = inverse(overlap * beta[:, None], row, column, INVERSE_PRECISION)
    tl.store(inverse_ptr + offsets, result.to(inverse_ptr.dtype.element_ty))
