"""Prompts of Mamba-2 by products of matrices: chunks at once, states carried from one to the next.

Within a chunk the recurrence is attention without a softmax: the output of token `t` is the sum
over the chunk's tokens `s <= t` of `(C_t . B_s) * exp(decay from s to t) * step_s * x_s`, and what
the state before the chunk gives. Four launches: decays; what each chunk adds to an empty state; a
walk over the chunks of a sequence, the only part that is not parallel; outputs. A program of the
last has 64 tokens of one head, and walks the chunk's tokens up to them.

Bytes per token and head: x read twice, the output written once, and 16 * head_dim * d_state for
every chunk's state. Source: Dao and Gu, "Transformers are SSMs", 6.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.activations import silu
from blockstride.kernels.common.gpu.launching import (
    assertions,
    backend_of,
    dense,
    dot_precision,
    index_dtype,
    next_power_of_2,
    strides_of,
)
from blockstride.kernels.common.gpu.rows import load_rows
from blockstride.kernels.common.gpu.sequence_chunks import find_chunk, num_slots
from blockstride.kernels.mamba2.gpu.ssd_chunks import (
    ssd_carry_kernel,
    ssd_checkpoint_kernel,
    ssd_decay_kernel,
    ssd_state_kernel,
)

# the least extent of a product on a tensor core
LEAST = 16


@triton.jit
def given_by_state(
    C_ptr, state_ptr, tokens, mask_m, offs_p, stride_C_token, stride_C_state,
    HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What the state before a chunk gives to some of its tokens, before it decays."""
    acc = tl.zeros([tokens.shape[0], offs_p.shape[0]], tl.float32)
    for k in tl.static_range(0, BLOCK_N, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        c = load_rows(C_ptr, tokens, offs_k, mask_m, stride_C_token, stride_C_state, D_STATE)
        state = tl.load(
            state_ptr + offs_p[:, None] * D_STATE + offs_k[None, :],
            mask=(offs_p < HEAD_DIM)[:, None] & (offs_k < D_STATE)[None, :],
            other=0.0,
        )
        acc = tl.dot(c, state.to(c.dtype).T, acc, input_precision=PRECISION)
    return acc


@triton.jit(do_not_specialize=["num_tokens", "num_seqs"])
def ssd_output_kernel(
    x_ptr, B_ptr, C_ptr, D_ptr, z_ptr, state_indices_ptr, query_start_loc_ptr,
    step_ptr, high_ptr, low_ptr, carry_ptr, out_ptr,
    # sizes
    num_seqs, num_tokens,
    # strides, in elements
    stride_x_token, stride_x_head, stride_x_dim,
    stride_B_token, stride_B_group, stride_B_state,
    stride_C_token, stride_C_group, stride_C_state,
    stride_z_token, stride_z_head, stride_z_dim,
    stride_out_token, stride_out_head, stride_out_dim,
    # meta-parameters
    NUM_HEADS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    D_STATE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Outputs of some tokens of a chunk for one head."""
    tile, head = tl.program_id(0) // NUM_HEADS, tl.program_id(0) % NUM_HEADS
    tiles_m: tl.constexpr = CHUNK // BLOCK_M
    slot = tile // tiles_m
    sequence, begin, end, _, _ = find_chunk(query_start_loc_ptr, slot, num_seqs, CHUNK, num_tokens)
    first_m = tile % tiles_m * BLOCK_M
    if begin + first_m >= end:
        return
    offs_m = first_m + tl.arange(0, BLOCK_M)
    offs_p = tl.arange(0, BLOCK_P)
    offs_n = tl.arange(0, BLOCK_N)
    mask_m = begin + offs_m < end
    tokens = (begin + offs_m).to(tl.int64)
    out_rows = out_ptr + head.to(tl.int64) * stride_out_head + tokens * stride_out_token
    places = out_rows[:, None] + offs_p.to(tl.int64)[None, :] * stride_out_dim
    mask = mask_m[:, None] & (offs_p < HEAD_DIM)[None, :]
    if tl.load(state_indices_ptr + sequence, mask=sequence < num_seqs, other=0) <= 0:
        tl.store(places, tl.zeros([BLOCK_M, BLOCK_P], out_ptr.dtype.element_ty), mask=mask)
        return

    group = (head // HEADS_PER_GROUP).to(tl.int64)
    head_row = slot.to(tl.int64) * NUM_HEADS + head
    head = head.to(tl.int64)
    x_ptr += head * stride_x_head
    B_ptr += group * stride_B_group
    C_ptr += group * stride_C_group
    step_ptr += head_row * CHUNK
    high_ptr += head_row * CHUNK
    low_ptr += head_row * CHUNK
    high_m = tl.load(high_ptr + offs_m)
    low_m = tl.load(low_ptr + offs_m)

    acc = given_by_state(
        C_ptr, carry_ptr + head_row * (HEAD_DIM * D_STATE), tokens, mask_m, offs_p,
        stride_C_token, stride_C_state, HEAD_DIM, D_STATE, PRECISION, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    acc *= tl.math.exp2(high_m + low_m)[:, None]

    # what the chunk's tokens give, up to each
    c = load_rows(C_ptr, tokens, offs_n, mask_m, stride_C_token, stride_C_state, D_STATE)
    for first in tl.range(0, first_m + BLOCK_M, BLOCK_T):
        offs_t = first + tl.arange(0, BLOCK_T)
        mask_t = begin + offs_t < end
        sources = (begin + offs_t).to(tl.int64)
        b = load_rows(B_ptr, sources, offs_n, mask_t, stride_B_token, stride_B_state, D_STATE)
        x = load_rows(x_ptr, sources, offs_p, mask_t, stride_x_token, stride_x_dim, HEAD_DIM)
        scores = tl.dot(c, b.T, input_precision=PRECISION)  # [BLOCK_M, BLOCK_T]
        high = high_m[:, None] - tl.load(high_ptr + offs_t)[None, :]
        log_decay = high + (low_m[:, None] - tl.load(low_ptr + offs_t)[None, :])
        log_decay = tl.where(offs_t[None, :] <= offs_m[:, None], log_decay, float("-inf"))
        scores *= tl.math.exp2(log_decay) * tl.load(step_ptr + offs_t)[None, :]
        acc = tl.dot(scores.to(x.dtype), x, acc, input_precision=PRECISION)

    if D_ptr is not None:
        x = load_rows(x_ptr, tokens, offs_p, mask_m, stride_x_token, stride_x_dim, HEAD_DIM)
        acc += tl.load(D_ptr + head).to(tl.float32) * x.to(tl.float32)
    if z_ptr is not None:
        z_ptr += head * stride_z_head
        z = load_rows(z_ptr, tokens, offs_p, mask_m, stride_z_token, stride_z_dim, HEAD_DIM)
        acc *= silu(z.to(tl.float32))
    tl.store(places, acc.to(out_ptr.dtype.element_ty), mask=mask)


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    query_start_loc: Tensor,
    has_initial_state: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    chunk_size: int = 256,
    checkpoint_tokens: Tensor | None = None,
    checkpoint_indices: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See `blockstride.kernels.ssd_scan`, which validates and describes the arguments."""
    (num_tokens, num_heads, head_dim), (num_seqs,) = x.shape, state_indices.shape
    num_groups, d_state = B.shape[1:]
    if out is None:
        out = x.new_empty(x.shape)
    if num_tokens == 0 or num_seqs == 0:
        return out.zero_()
    state_indices, query_start_loc, has_initial_state, A, D, dt_bias = dense(
        state_indices, query_start_loc, has_initial_state, A, D, dt_bias
    )
    checkpoint_tokens, checkpoint_indices = dense(checkpoint_tokens, checkpoint_indices)
    slots = num_slots(num_tokens, num_seqs, chunk_size)
    step, high, low = x.new_empty((3, slots, num_heads, chunk_size), dtype=torch.float32)
    carry = x.new_empty((slots, num_heads, head_dim, d_state), dtype=torch.float32)
    block_p, block_n = (max(LEAST, next_power_of_2(size)) for size in (head_dim, d_state))
    is_wide = x.dtype == torch.float32
    rows = min(chunk_size, 32 if is_wide or backend_of(x.device) == "hip" else 64)
    tile_p, tile_n = min(block_p, 64), min(block_n, 64 if is_wide else 128)
    pool = {"INDEX": index_dtype(3, ssm_state), **assertions(NUM_BLOCKS=ssm_state.shape[0])}
    sizes = {"HEAD_DIM": head_dim, "D_STATE": d_state, "CHUNK": chunk_size}
    options = {"num_warps": 4, "enable_fp_fusion": True}
    products = {
        **sizes,
        # a constant, as what is divided by another number counts as different in each thread
        "NUM_HEADS": num_heads,
        "HEADS_PER_GROUP": num_heads // num_groups,
        "PRECISION": dot_precision(x.device),
        "BLOCK_T": min(chunk_size, 32 if is_wide else 64),
        **options,
    }
    heads = min(8, next_power_of_2(num_heads))
    ssd_decay_kernel[(-(-num_heads // heads) * slots,)](
        dt, A, dt_bias, query_start_loc, step, high, low, num_seqs, num_heads, *dt.stride(),
        DT_SOFTPLUS=dt_softplus, CHUNK=chunk_size, BLOCK_H=heads, **options,
    )  # fmt: skip
    # the one product of their loops takes weighted inputs from registers. Were loads pipelined, it
    # would be left running on sm_90 while the next step overwrites those
    state_tiles = -(-block_p // tile_p) * -(-block_n // tile_n)
    ssd_state_kernel[(num_heads * slots, state_tiles)](
        x, B, state_indices, query_start_loc, step, high, low, carry,
        num_seqs, *x.stride(), *B.stride(),
        BLOCK_P=tile_p, BLOCK_N=tile_n, num_stages=1, **products,
    )  # fmt: skip
    carry_p = max(1, min(block_p, 2048 // block_n))
    ssd_carry_kernel[(num_seqs, num_heads, -(-head_dim // carry_p))](
        ssm_state, state_indices, query_start_loc, has_initial_state, high, low, carry,
        num_heads, *ssm_state.stride(), BLOCK_P=carry_p, BLOCK_N=block_n,
        **pool, **sizes, **options,
    )  # fmt: skip
    if checkpoint_tokens is not None and checkpoint_tokens.shape[0] > 0:
        ssd_checkpoint_kernel[(num_heads * checkpoint_tokens.shape[0], state_tiles)](
            x, B, ssm_state, state_indices, query_start_loc, checkpoint_tokens, checkpoint_indices,
            step, high, low, carry, num_seqs,
            *x.stride(), *B.stride(), *ssm_state.stride(),
            BLOCK_P=tile_p, BLOCK_N=tile_n, num_stages=1, **pool, **products,
        )  # fmt: skip
    slots = num_slots(num_tokens, num_seqs + 1, chunk_size)
    ssd_output_kernel[(num_heads * slots * (chunk_size // rows),)](
        x, B, C, D, z, state_indices, query_start_loc, step, high, low, carry, out,
        num_seqs, num_tokens, *x.stride(), *B.stride(), *C.stride(),
        *strides_of(z, 3), *out.stride(),
        BLOCK_M=rows, BLOCK_P=block_p, BLOCK_N=block_n, BLOCK_K=min(block_n, 64),
        num_stages=2, **products,
    )  # fmt: skip
    return out
