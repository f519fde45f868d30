"""The decode step of a gated delta net: a state is read once for one to eight tokens.

A program has some value columns of one head's state of one sequence, and all keys, so both sums
over keys stay inside it. It advances them token by token in registers, and writes them once or,
where a draft may be accepted in part, after each token. Bytes per value head: the state, twice.
Source: Yang et al., "Gated Delta Networks", 3.1.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import LOG2_E
from blockstride.kernels.common.gpu.launching import (
    assertions,
    dense,
    index_dtype,
    next_power_of_2,
    warps_for,
)
from blockstride.kernels.common.gpu.rows import store_zeros
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.delta.gpu.keys import NORM_EPS

# elements of a program's tile of the state
TILE = 2048


@triton.jit
def load_key(ptr, offs_k, stride_dim, KEY_DIM: tl.constexpr, L2_NORM: tl.constexpr):
    """One key or query in float32, of unit length if that is asked for."""
    places = ptr + offs_k.to(tl.int64) * stride_dim
    key = tl.load(places, mask=offs_k < KEY_DIM, other=0.0)
    wide = key.to(tl.float32)
    if L2_NORM:
        # rounded as in a prompt
        wide = (wide * tl.rsqrt(tl.sum(wide * wide) + NORM_EPS)).to(key.dtype).to(tl.float32)
    return wide


@triton.jit
def load_decay(g_ptr, offs_k, stride_dim, KEY_DIM: tl.constexpr):
    """What a token leaves of a state: of all of it, or row by row where gates are of channels."""
    if stride_dim is None:
        g = tl.load(g_ptr).to(tl.float32)
    else:
        places = g_ptr + offs_k.to(tl.int64) * stride_dim
        g = tl.load(places, mask=offs_k < KEY_DIM, other=0.0).to(tl.float32)[:, None]
    return tl.math.exp2(g * LOG2_E)


@triton.jit
def store_state(page_ptr, inner, state, mask):
    """Write a tile of a state to its page."""
    tl.store(page_ptr + inner, state.to(page_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_delta_rule_update_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, ssm_state_ptr, state_indices_ptr, checkpoint_indices_ptr,
    out_ptr,
    # sizes
    num_value_heads, scale,
    # strides, in elements
    stride_q_seq, stride_q_token, stride_q_head, stride_q_dim,
    stride_k_seq, stride_k_token, stride_k_head, stride_k_dim,
    stride_v_seq, stride_v_token, stride_v_head, stride_v_dim,
    stride_g_seq, stride_g_token, stride_g_head, stride_g_dim,
    stride_beta_seq, stride_beta_token, stride_beta_head,
    stride_state_block, stride_state_head, stride_state_key, stride_state_value,
    stride_out_seq, stride_out_token, stride_out_head, stride_out_dim,
    # meta-parameters
    NUM_NEW: tl.constexpr, VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, L2_NORM: tl.constexpr, INDEX: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """Some value columns of one head of one sequence."""
    # on one axis, since the others end at 65,535: tiles of one head read the same key
    tiles_v: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    row = tl.program_id(0) // tiles_v
    sequence = (row // num_value_heads).to(tl.int64)
    value_head = (row % num_value_heads).to(tl.int64)
    head = value_head // VALUE_HEADS_PER_HEAD
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = tl.program_id(0) % tiles_v * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_v = offs_v < VALUE_DIM
    value_columns = offs_v.to(tl.int64)
    out_ptr += sequence * stride_out_seq + value_head * stride_out_head
    out_ptr += value_columns * stride_out_dim
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    if block <= 0:
        store_zeros(out_ptr, stride_out_token, NUM_NEW, mask_v)
        return

    inner = offs_k.to(INDEX)[:, None] * stride_state_key
    inner += offs_v.to(INDEX)[None, :] * stride_state_value
    mask = (offs_k < KEY_DIM)[:, None] & mask_v[None, :]
    ssm_state_ptr += value_head * stride_state_head
    page_ptr = ssm_state_ptr + block * stride_state_block
    state = tl.load(page_ptr + inner, mask=mask, other=0.0).to(tl.float32)
    q_ptr += sequence * stride_q_seq + head * stride_q_head
    k_ptr += sequence * stride_k_seq + head * stride_k_head
    v_ptr += sequence * stride_v_seq + value_head * stride_v_head + value_columns * stride_v_dim
    g_ptr += sequence * stride_g_seq + value_head * stride_g_head
    beta_ptr += sequence * stride_beta_seq + value_head * stride_beta_head
    for t in range(NUM_NEW):
        q = load_key(q_ptr, offs_k, stride_q_dim, KEY_DIM, L2_NORM)[:, None]
        k = load_key(k_ptr, offs_k, stride_k_dim, KEY_DIM, L2_NORM)[:, None]
        v = tl.load(v_ptr, mask=mask_v, other=0.0).to(tl.float32)
        decay = load_decay(g_ptr, offs_k, stride_g_dim, KEY_DIM)
        beta = tl.load(beta_ptr).to(tl.float32)
        state *= decay
        change = beta * (v - tl.sum(k * state, 0))
        state += k * change[None, :]
        y = scale * tl.sum(q * state, 0)
        if checkpoint_indices_ptr is not None:
            target = load_block(checkpoint_indices_ptr, sequence * NUM_NEW + t, NUM_BLOCKS)
            kept_ptr = ssm_state_ptr + target * stride_state_block
            store_state(kept_ptr, inner, state, mask & (target > 0))
        tl.store(out_ptr, y.to(out_ptr.dtype.element_ty), mask=mask_v)
        q_ptr += stride_q_token
        k_ptr += stride_k_token
        v_ptr += stride_v_token
        g_ptr += stride_g_token
        beta_ptr += stride_beta_token
        out_ptr += stride_out_token
    if checkpoint_indices_ptr is None:
        store_state(page_ptr, inner, state, mask)


def gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    scale: float,
    qk_l2norm: bool = False,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule_update`, which validates."""
    result = v.new_empty(v.shape) if out is None else out
    if result.numel() == 0:
        return result
    rows = result
    if q.dim() == 3:
        q, k, v, g, beta, rows = (part[:, None] for part in (q, k, v, g, beta, rows))
    (num_seqs, num_new, num_heads, key_dim), (*_, num_value_heads, value_dim) = k.shape, v.shape
    state_indices, checkpoint_indices = dense(state_indices, checkpoint_indices)
    block_k = next_power_of_2(key_dim)
    block_v = min(next_power_of_2(value_dim), max(1, TILE // block_k))
    programs = -(-value_dim // block_v) * num_value_heads * num_seqs
    gated_delta_rule_update_kernel[(programs,)](
        q, k, v, g, beta, ssm_state, state_indices, checkpoint_indices, rows,
        num_value_heads, scale, *q.stride(), *k.stride(), *v.stride(), *g.stride()[:3],
        g.stride(3) if g.dim() == 4 else None, *beta.stride(), *ssm_state.stride(), *rows.stride(),
        NUM_NEW=num_new, VALUE_HEADS_PER_HEAD=num_value_heads // num_heads, KEY_DIM=key_dim,
        VALUE_DIM=value_dim, L2_NORM=qk_l2norm, INDEX=index_dtype(2, ssm_state),
        BLOCK_K=block_k, BLOCK_V=block_v, num_warps=warps_for(4 * block_k * block_v),
        enable_fp_fusion=True, **assertions(NUM_BLOCKS=ssm_state.shape[0]),
    )  # fmt: skip
    return result
