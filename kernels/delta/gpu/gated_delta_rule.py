"""Prompts of a gated delta net: chunks of tokens, their products, one state in registers.

Token by token the rule is `state *= exp(g)`, `change = beta * (v - k @ state)`,
`state += outer(k, change)`, `out = scale * q @ state`. A first launch prepares all chunks (see
`gated_delta_chunks`). A program of the second has some value columns of one head's state and walks
the sequence's chunks: five products a chunk, the state never leaving its registers.

Bytes per token and value head: q, k, v, and two rows of 64 read, the output written; q and k again
for each tile of value columns. Gates of channels cost three rows of keys more, written by the first
launch: queries and keys as a state before the chunk sees them, and keys as the one after it does.
Source: Yang et al., "Gated Delta Networks", 3.3; the chunks are those of Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule", 3.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.launching import (
    assertions,
    backend_of,
    dense,
    dot_precision,
    index_dtype,
    next_power_of_2,
)
from blockstride.kernels.common.gpu.rows import store_rows
from blockstride.kernels.common.gpu.sequence_chunks import end_of, num_slots
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.delta.gpu.channel_checkpoints import channel_checkpoint_kernel
from blockstride.kernels.delta.gpu.chunk_states import advance_chunk
from blockstride.kernels.delta.gpu.gated_delta_chunks import gated_delta_chunk_kernel

# the least extent of a product on a tensor core
LEAST = 16
# what fits the registers of 8 warps beside keys and queries of 128
VALUE_COLUMNS = 32


@triton.jit
def store_padding(
    out_ptr, start, stop, offs_t, offs_v, stride_token, stride_dim, VALUE_DIM: tl.constexpr
):  # fmt: skip
    """Write zeros for all tokens of a sequence that is padding."""
    zeros = tl.zeros([offs_t.shape[0], offs_v.shape[0]], tl.float32)
    for first in tl.range(start, stop, offs_t.shape[0]):
        tokens = (first + offs_t).to(tl.int64)
        store_rows(
            zeros, out_ptr, tokens, offs_v, tokens < stop, stride_token, stride_dim, VALUE_DIM
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens", "num_seqs", "num_checkpoints"])
def gated_delta_rule_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, ssm_state_ptr,
    state_indices_ptr, query_start_loc_ptr, has_initial_state_ptr,
    checkpoint_tokens_ptr, checkpoint_indices_ptr,
    inverse_ptr, scores_ptr, decayed_ptr, passed_ptr, kept_ptr, kept_passed_ptr, out_ptr,
    # sizes
    num_seqs, num_tokens, num_checkpoints, scale,
    # strides, in elements
    stride_q_token, stride_q_head, stride_q_dim, stride_k_token, stride_k_head, stride_k_dim,
    stride_v_token, stride_v_head, stride_v_dim,
    stride_g_token, stride_g_head, stride_beta_token, stride_beta_head,
    stride_state_block, stride_state_head, stride_state_key, stride_state_value,
    stride_out_token, stride_out_head, stride_out_dim,
    # meta-parameters
    NUM_VALUE_HEADS: tl.constexpr, VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, L2_NORM: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some value columns of one head of one sequence."""
    # tiles of one head read the same keys, and value heads of a head as well: they are neighbours
    tiles_v: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    row = tl.program_id(0) // tiles_v
    sequence, value_head = row // NUM_VALUE_HEADS, row % NUM_VALUE_HEADS
    start = tl.load(query_start_loc_ptr + sequence)
    stop = end_of(query_start_loc_ptr, sequence, num_seqs, num_tokens)
    if start >= stop:
        return
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS, num_seqs)
    head = (value_head // VALUE_HEADS_PER_HEAD).to(tl.int64)
    wide_head = value_head.to(tl.int64)
    offs_t, offs_k = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(0) % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    out_ptr += wide_head * stride_out_head
    if block <= 0:
        store_padding(
            out_ptr, start, stop, offs_t, offs_v, stride_out_token, stride_out_dim, VALUE_DIM
        )  # fmt: skip
        return

    q_ptr += head * stride_q_head
    k_ptr += head * stride_k_head
    v_ptr += wide_head * stride_v_head
    g_ptr += wide_head * stride_g_head
    beta_ptr += wide_head * stride_beta_head
    ssm_state_ptr += wide_head * stride_state_head
    inner = offs_k.to(INDEX)[:, None] * stride_state_key
    inner += offs_v.to(INDEX)[None, :] * stride_state_value
    mask_state = (offs_k < KEY_DIM)[:, None] & (offs_v < VALUE_DIM)[None, :]
    page_ptr = ssm_state_ptr + block * stride_state_block
    is_initial = tl.load(has_initial_state_ptr + sequence)
    state = tl.load(page_ptr + inner, mask=mask_state & is_initial, other=0.0).to(tl.float32)
    slot = (start // CHUNK + sequence).to(tl.int64)
    for first in tl.range(start, stop, CHUNK):
        state = advance_chunk(
            state, q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, ssm_state_ptr + inner,
            checkpoint_tokens_ptr, checkpoint_indices_ptr, inverse_ptr, scores_ptr, decayed_ptr,
            passed_ptr, kept_ptr, kept_passed_ptr, out_ptr, first, stop,
            slot * NUM_VALUE_HEADS + value_head, wide_head, num_tokens, num_checkpoints, scale,
            offs_t, offs_k, offs_v, mask_state, stride_q_token, stride_q_dim, stride_k_token,
            stride_k_dim, stride_v_token, stride_v_dim, stride_g_token, stride_beta_token,
            stride_state_block, stride_out_token, stride_out_dim,
            NUM_VALUE_HEADS, KEY_DIM, VALUE_DIM, L2_NORM, PRECISION, CHUNK, NUM_BLOCKS,
        )  # fmt: skip
        slot += 1
    tl.store(page_ptr + inner, state.to(ssm_state_ptr.dtype.element_ty), mask=mask_state)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    scale: float,
    qk_l2norm: bool = False,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule`, which validates and describes the arguments."""
    num_tokens, num_heads, key_dim = k.shape
    (_, num_value_heads, value_dim), (num_seqs,) = v.shape, state_indices.shape
    if out is None:
        out = v.new_empty(v.shape)
    if num_tokens == 0 or num_seqs == 0:
        return out.zero_()
    state_indices, query_start_loc, has_initial_state = dense(
        state_indices, query_start_loc, has_initial_state
    )
    checkpoint_tokens, checkpoint_indices = dense(checkpoint_tokens, checkpoint_indices)
    is_wide = k.dtype == torch.float32
    # three products of float32 need three times the registers
    chunk = 16 if is_wide else 64
    slots = num_slots(num_tokens, num_seqs, chunk)
    inverses, scores = k.new_empty((2, slots, num_value_heads, chunk, chunk))
    precision, is_cuda = dot_precision(k.device), backend_of(k.device) == "cuda"
    meta = {
        # a constant, as what is divided by another number counts as different in each thread
        "NUM_VALUE_HEADS": num_value_heads,
        "VALUE_HEADS_PER_HEAD": num_value_heads // num_heads,
        "KEY_DIM": key_dim,
        "L2_NORM": qk_l2norm,
        "PRECISION": precision,
        "BLOCK_K": max(LEAST, next_power_of_2(key_dim)),
        "CHUNK": chunk,
        "num_warps": 8,
        "enable_fp_fusion": True,
    }
    decayed, passed, kept = None, None, (None, None)
    if g.dim() == 3:
        decayed = k.new_empty((3, num_tokens, num_value_heads, key_dim))
        passed = g.new_empty((slots, num_value_heads, key_dim), dtype=torch.float32)
        kept = _keys_at_checkpoints(
            k, g, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices, meta
        )
    gated_delta_chunk_kernel[(num_value_heads * slots,)](
        q, k, g, beta, state_indices, query_start_loc, inverses, scores,
        decayed, passed, num_seqs, num_tokens, scale,
        *q.stride(), *k.stride(), *g.stride(), *(0,) * (3 - g.dim()), *beta.stride(),
        LEVELS=chunk.bit_length() - 1,
        # products of ten bits are enough for what is kept in eight
        INVERSE_PRECISION="tf32" if is_cuda and k.dtype == torch.bfloat16 else precision,
        **meta,
    )  # fmt: skip
    block_v = max(LEAST, min(VALUE_COLUMNS, next_power_of_2(value_dim)))
    # the tokens behind the last sequence are one more
    programs = -(-value_dim // block_v) * num_value_heads * (num_seqs + 1)
    gated_delta_rule_kernel[(programs,)](
        q, k, v, g, beta, ssm_state, state_indices, query_start_loc, has_initial_state,
        checkpoint_tokens, checkpoint_indices, inverses, scores, decayed, passed, *kept, out,
        num_seqs, num_tokens,
        0 if checkpoint_tokens is None else checkpoint_tokens.shape[0], scale,
        *q.stride(), *k.stride(), *v.stride(), *g.stride()[:2], *beta.stride(), *ssm_state.stride(),
        *out.stride(), VALUE_DIM=value_dim, INDEX=index_dtype(2, ssm_state), BLOCK_V=block_v,
        num_stages=1, **meta, **assertions(NUM_BLOCKS=ssm_state.shape[0]),
    )  # fmt: skip
    return out


def _keys_at_checkpoints(
    k: Tensor,
    g: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    checkpoint_tokens: Tensor | None,
    checkpoint_indices: Tensor | None,
    meta: dict[str, Any],
) -> tuple[Tensor | None, Tensor | None]:
    """Of each checkpoint its chunk's keys decayed up to it, and what is left of the state before.

    `None` for both without checkpoints.
    """
    if checkpoint_tokens is None:
        return None, None
    (count,), (_, num_value_heads, key_dim) = checkpoint_tokens.shape, g.shape
    keys = k.new_empty((count, num_value_heads, meta["CHUNK"], key_dim))
    passed = g.new_empty((count, num_value_heads, key_dim), dtype=torch.float32)
    if count > 0:
        options = {name: value for name, value in meta.items() if name != "PRECISION"}
        channel_checkpoint_kernel[(count * num_value_heads,)](
            k, g, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices,
            keys, passed, state_indices.shape[0], *k.stride(), *g.stride(), **options,
        )  # fmt: skip
    return keys, passed
