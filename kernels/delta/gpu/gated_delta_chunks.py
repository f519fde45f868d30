"""What a chunk of the gated delta rule needs before any state is known.

Each token corrects what the state predicts for its key, so its correction depends on those of the
chunk's earlier tokens: `(I + L) change = beta * (v - prediction)`, with `L` strictly lower
triangular. Here `I + L` is inverted, for all chunks at once. The inverses of two diagonal blocks
are joined by `[[T, 0], [-U M T, U]]`, for all blocks of a size by two products of whole matrices.
Products of powers of `L` would be fewer, and would lose all digits where keys repeat.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.activations import LOG2_E
from blockstride.kernels.common.gpu.decays import split_sum
from blockstride.kernels.common.gpu.sequence_chunks import find_chunk

NORM_EPS: tl.constexpr = tl.constexpr(1e-6)


@triton.jit
def load_keys(
    ptr, tokens, offs_k, mask_t, stride_token, stride_dim,
    KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr,
):  # fmt: skip
    """Keys or queries of some tokens, of unit length if that is asked for."""
    places = ptr + tokens[:, None] * stride_token + offs_k.to(tl.int64)[None, :] * stride_dim
    keys = tl.load(places, mask=mask_t[:, None] & (offs_k < KEY_DIM)[None, :], other=0.0)
    if L2_NORM:
        wide = keys.to(tl.float32)
        keys = (wide * tl.rsqrt(tl.sum(wide * wide, 1) + NORM_EPS)[:, None]).to(keys.dtype)
    return keys


@triton.jit
def load_decays(g_ptr, tokens, mask_t, stride_token):
    """Running sums of a chunk's log decays, as two numbers each."""
    g = tl.load(g_ptr + tokens * stride_token, mask=mask_t, other=0.0).to(tl.float32)
    return split_sum(g * LOG2_E)


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


@triton.jit(do_not_specialize=["num_seqs"])
def gated_delta_chunk_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, state_indices_ptr, query_start_loc_ptr,
    inverse_ptr, scores_ptr,
    # sizes
    num_seqs, scale,
    # strides, in elements
    stride_q_token, stride_q_head, stride_q_dim,
    stride_k_token, stride_k_head, stride_k_dim,
    stride_g_token, stride_g_head, stride_beta_token, stride_beta_head,
    # meta-parameters
    NUM_VALUE_HEADS: tl.constexpr, VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr,
    L2_NORM: tl.constexpr, PRECISION: tl.constexpr, INVERSE_PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
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
    offs_t, offs_k = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    mask_t = begin + offs_t < end
    tokens = (begin + offs_t).to(tl.int64)
    k_ptr += head * stride_k_head
    q_ptr += head * stride_q_head
    k = load_keys(k_ptr, tokens, offs_k, mask_t, stride_k_token, stride_k_dim, KEY_DIM, L2_NORM)
    q = load_keys(q_ptr, tokens, offs_k, mask_t, stride_q_token, stride_q_dim, KEY_DIM, L2_NORM)
    high, low = load_decays(g_ptr + wide_head * stride_g_head, tokens, mask_t, stride_g_token)
    beta_ptr += wide_head * stride_beta_head
    beta = tl.load(beta_ptr + tokens * stride_beta_token, mask=mask_t, other=0.0).to(tl.float32)

    row, column = offs_t[:, None], offs_t[None, :]
    log_decay = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    decay = tl.math.exp2(tl.where(row >= column, log_decay, float("-inf")))
    overlap = tl.dot(k, k.T, input_precision=PRECISION)
    lower = overlap * decay * beta[:, None]
    scores = tl.dot(q, k.T, input_precision=PRECISION) * decay * scale
    matrix = (slot.to(tl.int64) * NUM_VALUE_HEADS + value_head) * (CHUNK * CHUNK)
    offsets = row * CHUNK + column
    result = inverse(lower, row, column, INVERSE_PRECISION)
    tl.store(inverse_ptr + matrix + offsets, result.to(inverse_ptr.dtype.element_ty))
    tl.store(scores_ptr + matrix + offsets, scores.to(scores_ptr.dtype.element_ty))
