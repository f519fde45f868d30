"""Decode steps of Mamba-2 that read a state and write it only when a ring of inputs is full.

One program takes one head of one sequence. A step needs no new state for its output: with `T` the
logarithm of the decay since the state `S` was written, and `T_i` that since token `i` of the ring,
`y = exp(T) * S @ C + sum_i exp(T_i) * (B_i @ C) * x_i`, the new token among them. A ring keeps each
token's own decay, of which these are sums: differences of sums would be NaN after a decay to zero,
and would lose small decays beside a large one. When the ring is full, `S` takes in its tokens the
same way.

Bytes per step and row: `d_state` states read, and `2 / (length + 1)` as many on average to write
them; an update without a ring writes as many as it reads. Source: Dao and Gu, "Transformers are
SSMs", 6: the quadratic form, over the tokens of a ring.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor

from blockstride.kernels.common.gpu.activations import LOG2_E, silu, softplus, widened
from blockstride.kernels.common.gpu.launching import assertions, index_dtype, next_power_of_2
from blockstride.kernels.common.gpu.state_parts import load_parts, store_parts
from blockstride.kernels.mamba2.state_ring import StateRing

# states of a tile of one warp, 32 a lane, and bytes of a row that lie in one part of it
TILE_STATES = 1024
PART_BYTES = 128


@triton.jit
def load_group(
    ptr, stride_state, D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr
):
    """What the rows of a head share, by parts of its states."""
    offs_n = tl.arange(0, BLOCK_N).to(tl.int64)[None, :]
    one_row = tl.full([1], True, tl.int1)
    return load_parts(ptr + offs_n * stride_state, stride_state, one_row, D_STATE, PARTS, BLOCK_N)


@triton.jit
def overlaps(rows, C, PARTS: tl.constexpr):
    """The product of each row of a tile with a vector, both by parts."""
    products = rows[0] * C[0]
    for part in tl.static_range(1, PARTS):
        products += rows[part] * C[part]
    return tl.sum(products, axis=1)


@triton.jit
def ring_shares(
    newest, logs, count, C, B_ptr, stride_B_slot, stride_B_state, INDEX: tl.constexpr,
    D_STATE: tl.constexpr, BLOCK_L: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """How much of the input of each token in the ring is in the output; zero for empty slots."""
    offs_l = tl.arange(0, BLOCK_L)
    B_ptr += offs_l.to(INDEX)[:, None] * stride_B_slot
    B_ptr += tl.arange(0, BLOCK_N).to(INDEX)[None, :] * stride_B_state
    B = load_parts(B_ptr, stride_B_state, offs_l < count, D_STATE, PARTS, BLOCK_N)
    is_later = offs_l[None, :] > offs_l[:, None]
    since = newest + tl.sum(tl.where(is_later, logs[None, :], 0.0), axis=1)
    return tl.math.exp2(since * LOG2_E) * overlaps(B, C, PARTS)  # [BLOCK_L]


@triton.jit
def take_in(
    state, count, ring_x_ptr, ring_B_ptr, ring_log_decay_ptr, mask_m,
    stride_x_slot, stride_B_slot, stride_B_state, stride_log_decay_slot,
    D_STATE: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Advance a tile of states by the tokens of the ring, one after the other."""
    for _ in range(count):
        log_decay = tl.load(ring_log_decay_ptr)
        x = widened(tl.load(ring_x_ptr, mask=mask_m, other=0.0))
        B = load_group(ring_B_ptr, stride_B_state, D_STATE, PARTS, BLOCK_N)
        state = advanced(state, log_decay, x, B, PARTS)
        ring_log_decay_ptr += stride_log_decay_slot
        ring_x_ptr += stride_x_slot
        ring_B_ptr += stride_B_slot
    return state


@triton.jit
def advanced(state, log_decay, added, B, PARTS: tl.constexpr):
    """A tile of states after one more token."""
    decay = tl.math.exp2(log_decay * LOG2_E)
    parts = ()
    for part in tl.static_range(PARTS):
        parts += (state[part] * decay + added[:, None] * B[part],)  # [BLOCK_M, BLOCK_N]
    return parts


@triton.jit
def ssd_ring_update_kernel(
    x_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    ssm_state_ptr,
    ring_x_ptr,
    ring_B_ptr,
    ring_log_decay_ptr,
    ring_held_ptr,
    state_indices_ptr,
    D_ptr,
    z_ptr,
    dt_bias_ptr,
    out_ptr,
    # strides, in elements
    stride_x_seq, stride_x_head, stride_x_row,
    stride_dt_seq, stride_dt_head,
    stride_B_seq, stride_B_group, stride_B_state,
    stride_C_seq, stride_C_group, stride_C_state,
    stride_state_block, stride_state_head,
    stride_state_row: tl.constexpr, stride_state_state: tl.constexpr,
    stride_ring_x_block, stride_ring_x_slot, stride_ring_x_head, stride_ring_x_row,
    stride_ring_B_block, stride_ring_B_slot, stride_ring_B_group, stride_ring_B_state,
    stride_ring_log_decay_block, stride_ring_log_decay_slot, stride_ring_log_decay_head,
    stride_ring_held_block, stride_ring_held_head,
    stride_z_seq, stride_z_head, stride_z_row,
    stride_out_seq, stride_out_head, stride_out_row,
    # meta-parameters
    HEADS_PER_GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D_STATE: tl.constexpr,
    LENGTH: tl.constexpr, DT_SOFTPLUS: tl.constexpr, FOLDS: tl.constexpr, INDEX: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_L: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One token of one head of one sequence, or with `FOLDS` none, and the ring taken in."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    group = head // HEADS_PER_GROUP
    block = tl.load(state_indices_ptr + tl.program_id(0)).to(tl.int64)
    if NUM_BLOCKS is not None:
        tl.device_assert(block < NUM_BLOCKS, "state_indices: a block past the pool")
    if not FOLDS:
        x_ptr += sequence * stride_x_seq + head * stride_x_head
        out_ptr += sequence * stride_out_seq + head * stride_out_head
        if z_ptr is not None:
            z_ptr += sequence * stride_z_seq + head * stride_z_head
    if block <= 0:
        if not FOLDS:
            for row in range(0, HEAD_DIM, BLOCK_M):
                offs_m = row + tl.arange(0, BLOCK_M)
                places = out_ptr + offs_m.to(tl.int64) * stride_out_row
                zeros = tl.zeros([BLOCK_M], out_ptr.dtype.element_ty)
                tl.store(places, zeros, mask=offs_m < HEAD_DIM)
        return

    ssm_state_ptr += block * stride_state_block + head * stride_state_head
    ring_x_ptr += block * stride_ring_x_block + head * stride_ring_x_head
    ring_B_ptr += block * stride_ring_B_block + group * stride_ring_B_group
    ring_log_decay_ptr += block * stride_ring_log_decay_block + head * stride_ring_log_decay_head
    ring_held_ptr += block * stride_ring_held_block + head * stride_ring_held_head
    count = tl.load(ring_held_ptr).to(tl.int32)
    if FOLDS and count == 0:
        return
    slot, newest = count.to(tl.int64), 0.0
    offs_l = tl.arange(0, BLOCK_L)
    log_ptrs = ring_log_decay_ptr + offs_l.to(tl.int64) * stride_ring_log_decay_slot
    logs = tl.load(log_ptrs, mask=offs_l < count, other=0.0)
    is_full = count == LENGTH
    if FOLDS:
        is_full = count > 0
    else:
        step = widened(tl.load(dt_ptr + sequence * stride_dt_seq + head * stride_dt_head))
        if dt_bias_ptr is not None:
            step += widened(tl.load(dt_bias_ptr + head))
        if DT_SOFTPLUS:
            step = softplus(step)
        newest = tl.load(A_ptr + head) * step
        B_ptr += sequence * stride_B_seq + group * stride_B_group
        B = load_group(B_ptr, stride_B_state, D_STATE, PARTS, BLOCK_N)
        C_ptr += sequence * stride_C_seq + group * stride_C_group
        C = load_group(C_ptr, stride_C_state, D_STATE, PARTS, BLOCK_N)
        own = tl.sum(overlaps(B, C, PARTS))
        shares = ring_shares(
            newest, logs, count, C, ring_B_ptr, stride_ring_B_slot, stride_ring_B_state, INDEX,
            D_STATE, BLOCK_L, PARTS, BLOCK_N,
        )  # fmt: skip
    decay = tl.math.exp2((newest + tl.sum(logs)) * LOG2_E)

    for row in range(0, HEAD_DIM, BLOCK_M):
        offs_m = row + tl.arange(0, BLOCK_M)
        # the compiler drops a mask that is all true
        mask_m = tl.full([BLOCK_M], True, tl.int1)
        if HEAD_DIM % BLOCK_M != 0:
            mask_m = offs_m < HEAD_DIM
        inner = offs_m.to(INDEX)[:, None] * stride_state_row
        inner += tl.arange(0, BLOCK_N).to(INDEX)[None, :] * stride_state_state
        state_ptrs = ssm_state_ptr + inner
        state = load_parts(state_ptrs, stride_state_state, mask_m, D_STATE, PARTS, BLOCK_N)
        rows = offs_m.to(tl.int64)
        kept_rows = ring_x_ptr + rows * stride_ring_x_row
        if not FOLDS:
            x = widened(tl.load(x_ptr + rows * stride_x_row, mask=mask_m, other=0.0))
            added = step * x
            kept_ptrs = kept_rows[:, None] + offs_l.to(INDEX)[None, :] * stride_ring_x_slot
            is_held = mask_m[:, None] & (offs_l < count)[None, :]
            kept = tl.load(kept_ptrs, mask=is_held, other=0.0)
            y = overlaps(state, C, PARTS) * decay + own * added
            y += tl.sum(widened(kept) * shares[None, :], axis=1)
            if D_ptr is not None:
                y += widened(tl.load(D_ptr + head)) * x
            if z_ptr is not None:
                y *= silu(widened(tl.load(z_ptr + rows * stride_z_row, mask=mask_m, other=0.0)))
            y = y.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + rows * stride_out_row, y, mask=mask_m)
        if is_full:
            state = take_in(
                state, count, kept_rows, ring_B_ptr, ring_log_decay_ptr, mask_m,
                stride_ring_x_slot, stride_ring_B_slot, stride_ring_B_state,
                stride_ring_log_decay_slot, D_STATE, PARTS, BLOCK_N,
            )  # fmt: skip
            if not FOLDS:
                state = advanced(state, newest, added, B, PARTS)
            store_parts(state_ptrs, stride_state_state, state, mask_m, D_STATE, PARTS, BLOCK_N)
        elif not FOLDS:
            added = added.to(ring_x_ptr.dtype.element_ty)
            tl.store(kept_rows + slot * stride_ring_x_slot, added, mask=mask_m)

    # the count is written where another thread has yet to read
    tl.debug_barrier()
    if is_full:
        tl.store(ring_held_ptr, 0.0)
    elif not FOLDS:
        new_ptr = ring_B_ptr + slot * stride_ring_B_slot
        new_ptr += tl.arange(0, BLOCK_N).to(tl.int64)[None, :] * stride_ring_B_state
        one_row = tl.full([1], True, tl.int1)
        store_parts(new_ptr, stride_ring_B_state, B, one_row, D_STATE, PARTS, BLOCK_N)
        tl.store(ring_log_decay_ptr + slot * stride_ring_log_decay_slot, newest)
        tl.store(ring_held_ptr, count + 1.0)


def ssd_ring_update(
    x: Float[Tensor, "num_seqs num_heads head_dim"],
    dt: Float[Tensor, "num_seqs num_heads"],
    A: Float[Tensor, " num_heads"],
    B: Float[Tensor, "num_seqs num_groups d_state"],
    C: Float[Tensor, "num_seqs num_groups d_state"],
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    ring: StateRing,
    state_indices: Int32[Tensor, " num_seqs"],
    *,
    D: Float[Tensor, " num_heads"] | None = None,
    z: Float[Tensor, "num_seqs num_heads head_dim"] | None = None,
    dt_bias: Float[Tensor, " num_heads"] | None = None,
    dt_softplus: bool = True,
    out: Float[Tensor, "num_seqs num_heads head_dim"] | None = None,
) -> Float[Tensor, "num_seqs num_heads head_dim"]:
    """See `blockstride.kernels.ssd_ring_update`, which validates."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if result.numel() > 0:
        vectors = (None if v is None else v.contiguous() for v in (D, dt_bias))
        token = (x, dt, A.contiguous(), B, C, z, *vectors, result)
        _launch(ssm_state, ring, state_indices, token, dt_softplus)
    return result


def fold_state_ring(
    ssm_state: Float[Tensor, "num_blocks num_heads head_dim d_state"],
    ring: StateRing,
    state_indices: Int32[Tensor, " num_seqs"],
) -> None:
    """See `blockstride.kernels.fold_state_ring`, which validates."""
    if state_indices.shape[0] > 0 and 0 not in ssm_state.shape[1:]:
        _launch(ssm_state, ring, state_indices, (None,) * 9, False)


def _launch(
    ssm_state: Tensor,
    ring: StateRing,
    state_indices: Tensor,
    token: tuple[Tensor | None, ...],
    dt_softplus: bool,
) -> None:
    """One step, or none where there is no token: then rings are taken in."""
    x, dt, A, B, C, z, D, dt_bias, out = token
    num_heads, head_dim, d_state = ssm_state.shape[1:]
    states = next_power_of_2(d_state)
    block_n = min(states, PART_BYTES // ssm_state.element_size())
    block_m = min(next_power_of_2(head_dim), max(1, TILE_STATES // states))
    length = ring.x.shape[1]
    ssd_ring_update_kernel[(state_indices.shape[0], num_heads)](
        x,
        dt,
        A,
        B,
        C,
        ssm_state,
        *ring,
        state_indices.contiguous(),
        D,
        z,
        dt_bias,
        out,
        *_strides(x, 3),
        *_strides(dt, 2),
        *_strides(B, 3),
        *_strides(C, 3),
        *ssm_state.stride(),
        *ring.x.stride(),
        *ring.B.stride(),
        *ring.log_decay.stride(),
        *ring.held.stride(),
        *_strides(z, 3),
        *_strides(out, 3),
        HEADS_PER_GROUP=num_heads // ring.B.shape[2],
        HEAD_DIM=head_dim,
        D_STATE=d_state,
        LENGTH=length,
        DT_SOFTPLUS=dt_softplus,
        FOLDS=x is None,
        INDEX=index_dtype(3, ssm_state, ring.x, ring.B),
        BLOCK_M=block_m,
        BLOCK_L=next_power_of_2(length),
        PARTS=states // block_n,
        BLOCK_N=block_n,
        **assertions(NUM_BLOCKS=ssm_state.shape[0]),
        num_warps=1,
        enable_fp_fusion=True,
    )


def _strides(tensor: Tensor | None, axes: int) -> tuple[int, ...]:
    return (0,) * axes if tensor is None else tensor.stride()
