"""Keys of chunks with checkpoints, where gates are those of channels: decayed up to each of these.

They are what a state needs of keys after a token within a chunk. A program of its own has them, as
beside a state they would fill the registers.
"""

import triton
import triton.language as tl

from blockstride.kernels.common.gpu.rows import load_rows
from blockstride.kernels.common.gpu.sequence_chunks import count_below
from blockstride.kernels.delta.gpu.channel_gates import load_gates
from blockstride.kernels.delta.gpu.keys import load_keys


@triton.jit(do_not_specialize=["num_seqs"])
def channel_checkpoint_kernel(
    k_ptr, g_ptr, state_indices_ptr, query_start_loc_ptr, checkpoint_tokens_ptr,
    checkpoint_indices_ptr, kept_ptr, kept_passed_ptr,
    # sizes
    num_seqs,
    # strides, in elements
    stride_k_token, stride_k_head, stride_k_dim, stride_g_token, stride_g_head, stride_g_dim,
    # meta-parameters
    NUM_VALUE_HEADS: tl.constexpr, VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr,
    L2_NORM: tl.constexpr, CHUNK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The keys of one value head, up to one checkpoint from where its chunk begins."""
    checkpoint = tl.program_id(0) // NUM_VALUE_HEADS
    value_head = (tl.program_id(0) % NUM_VALUE_HEADS).to(tl.int64)
    token = tl.load(checkpoint_tokens_ptr + checkpoint)
    sequence = count_below(query_start_loc_ptr, num_seqs + 1, token + 1) - 1
    if (sequence >= num_seqs) | (tl.load(checkpoint_indices_ptr + checkpoint) <= 0):
        return
    if tl.load(state_indices_ptr + sequence) <= 0:
        return
    start = tl.load(query_start_loc_ptr + sequence)
    row = (token - start) % CHUNK
    offs_t, offs_k = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    tokens = (token - row + offs_t).to(tl.int64)
    k_ptr += value_head // VALUE_HEADS_PER_HEAD * stride_k_head
    k = load_keys(
        k_ptr, tokens, offs_k, offs_t <= row, stride_k_token, stride_k_dim, KEY_DIM, L2_NORM
    )  # fmt: skip
    g_ptr += value_head * stride_g_head
    following = load_gates(
        g_ptr + stride_g_token, tokens, offs_k, offs_t < row, stride_g_token, stride_g_dim, KEY_DIM
    )  # fmt: skip
    weight = tl.math.exp2(tl.cumsum(following, 0, reverse=True))
    mask_k = offs_k < KEY_DIM
    place = (tl.cast(checkpoint, tl.int64) * NUM_VALUE_HEADS + value_head) * KEY_DIM
    places = kept_ptr + place * CHUNK + offs_t[:, None] * KEY_DIM + offs_k[None, :]
    kept = (k.to(tl.float32) * weight).to(kept_ptr.dtype.element_ty)
    tl.store(places, kept, mask=mask_k[None, :])
    g = load_gates(g_ptr, tokens, offs_k, offs_t <= row, stride_g_token, stride_g_dim, KEY_DIM)
    tl.store(kept_passed_ptr + place + offs_k, tl.math.exp2(tl.sum(g, 0)), mask=mask_k)


@triton.jit
def state_at_checkpoint(
    state, change, kept_ptr, kept_passed_ptr, checkpoint, value_head, offs_t, offs_k,
    NUM_VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state after a checkpoint, from the one before its chunk and the changes."""
    place = (tl.cast(checkpoint, tl.int64) * NUM_VALUE_HEADS + value_head) * KEY_DIM
    rows = kept_ptr + place * offs_t.shape[0]
    keys = load_rows(rows, offs_t, offs_k, offs_t >= 0, KEY_DIM, 1, KEY_DIM)
    passed = tl.load(kept_passed_ptr + place + offs_k, mask=offs_k < KEY_DIM, other=0.0)
    return tl.dot(keys.T, change, state * passed[:, None], input_precision=PRECISION)
