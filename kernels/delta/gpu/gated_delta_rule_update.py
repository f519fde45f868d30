"""The decode step of a gated delta net: a state is read once and written once for a token.

A program has some value columns of one head's state of one sequence, and all keys, so both sums
over keys stay inside it. Bytes per value head: the state, twice. Source: Yang et al., "Gated Delta
Networks", 3.1.
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
from blockstride.kernels.common.gpu.state_blocks import load_block
from blockstride.kernels.delta.gpu.gated_delta_chunks import NORM_EPS

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
def gated_delta_rule_update_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, ssm_state_ptr, state_indices_ptr, out_ptr,
    # sizes
    num_value_heads, scale,
    # strides, in elements
    stride_q_seq, stride_q_head, stride_q_dim,
    stride_k_seq, stride_k_head, stride_k_dim,
    stride_v_seq, stride_v_head, stride_v_dim,
    stride_g_seq, stride_g_head, stride_beta_seq, stride_beta_head,
    stride_state_block, stride_state_head, stride_state_key, stride_state_value,
    stride_out_seq, stride_out_head, stride_out_dim,
    # meta-parameters
    VALUE_HEADS_PER_HEAD: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    L2_NORM: tl.constexpr, INDEX: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
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
    places = out_ptr + value_columns * stride_out_dim
    block = load_block(state_indices_ptr, sequence, NUM_BLOCKS)
    if block <= 0:
        tl.store(places, tl.zeros([BLOCK_V], out_ptr.dtype.element_ty), mask=mask_v)
        return

    inner = offs_k.to(INDEX)[:, None] * stride_state_key
    inner += offs_v.to(INDEX)[None, :] * stride_state_value
    mask = (offs_k < KEY_DIM)[:, None] & mask_v[None, :]
    page_ptr = ssm_state_ptr + block * stride_state_block + value_head * stride_state_head
    state = tl.load(page_ptr + inner, mask=mask, other=0.0).to(tl.float32)
    q_ptr += sequence * stride_q_seq + head * stride_q_head
    k_ptr += sequence * stride_k_seq + head * stride_k_head
    v_ptr += sequence * stride_v_seq + value_head * stride_v_head
    q = load_key(q_ptr, offs_k, stride_q_dim, KEY_DIM, L2_NORM)[:, None]
    k = load_key(k_ptr, offs_k, stride_k_dim, KEY_DIM, L2_NORM)[:, None]
    v = tl.load(v_ptr + value_columns * stride_v_dim, mask=mask_v, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + sequence * stride_g_seq + value_head * stride_g_head).to(tl.float32)
    beta_ptr += sequence * stride_beta_seq + value_head * stride_beta_head
    beta = tl.load(beta_ptr).to(tl.float32)
    state *= tl.math.exp2(g * LOG2_E)
    change = beta * (v - tl.sum(k * state, 0))
    state += k * change[None, :]
    y = scale * tl.sum(q * state, 0)
    tl.store(page_ptr + inner, state.to(ssm_state_ptr.dtype.element_ty), mask=mask)
    tl.store(places, y.to(out_ptr.dtype.element_ty), mask=mask_v)


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
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.gated_delta_rule_update`, which validates."""
    (num_seqs, num_heads, key_dim), (_, num_value_heads, value_dim) = k.shape, v.shape
    if out is None:
        out = v.new_empty(v.shape)
    if num_seqs == 0:
        return out
    (state_indices,) = dense(state_indices)
    block_k = next_power_of_2(key_dim)
    block_v = min(next_power_of_2(value_dim), max(1, TILE // block_k))
    programs = -(-value_dim // block_v) * num_value_heads * num_seqs
    gated_delta_rule_update_kernel[(programs,)](
        q, k, v, g, beta, ssm_state, state_indices, out, num_value_heads, scale,
        *q.stride(), *k.stride(), *v.stride(), *g.stride(), *beta.stride(),
        *ssm_state.stride(), *out.stride(),
        VALUE_HEADS_PER_HEAD=num_value_heads // num_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim,
        L2_NORM=qk_l2norm, INDEX=index_dtype(2, ssm_state), BLOCK_K=block_k, BLOCK_V=block_v,
        num_warps=warps_for(4 * block_k * block_v), enable_fp_fusion=True,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]),
    )  # fmt: skip
    return out
