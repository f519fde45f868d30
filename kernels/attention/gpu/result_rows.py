"""The end of an attention program's softmax, whole or added up from splits.

Where the work list gave a row tile's cache to one program, that program divides and stores; where
it was split, each program leaves its weighted values, maximum and sum in its slot, and one program
of `reduce_kernel` adds up the slots of the row tile in their order, so the result never depends on
which finished first. Bytes per split row: one accumulator in float32, written and read once.

Source: Dao et al., "Flash-Decoding for long-context inference".
"""

import triton
import triton.language as tl

from blockstride.kernels.attention.gpu.online_softmax import LOG2_E, LOWEST
from blockstride.kernels.attention.gpu.query_rows import query_rows
from blockstride.kernels.attention.gpu.work_item import ITEM_SIZE, NUM_SPLITS, SLOT


@triton.jit
def finish(row_max, row_sum, acc, sinks_ptr, v_scale_ptr, heads, mask_m):
    """Let the sinks join, divide. A row that saw nothing gets zeros and minus infinity."""
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + heads, mask=mask_m, other=0.0).to(tl.float32) * LOG2_E
        new_max = tl.maximum(row_max, sink)
        decay = tl.math.exp2(row_max - new_max)
        acc *= decay[:, None]
        row_sum = row_sum * decay + tl.math.exp2(sink - new_max)
        row_max = new_max
    # NaN counts: what was seen decides
    saw_any = row_sum != 0.0
    row_sum = tl.where(saw_any, row_sum, 1.0)
    lse = tl.where(saw_any, (row_max + tl.math.log2(row_sum)) / LOG2_E, float("-inf"))
    inverse = 1.0 / row_sum
    if v_scale_ptr is not None:
        inverse *= tl.load(v_scale_ptr)
    return acc * tl.where(saw_any, inverse, 0.0)[:, None], lse


@triton.jit
def store_rows(
    out_ptr, lse_ptr, acc, lse, tokens, heads, mask_m, offs_v,
    stride_token, stride_head, stride_dim, VALUE_SIZE: tl.constexpr, num_heads,
):  # fmt: skip
    """Write finished rows, and their denominators if they are asked for."""
    rows = tokens.to(tl.int64) * stride_token + heads.to(tl.int64) * stride_head
    tl.store(
        out_ptr + rows[:, None] + offs_v[None, :] * stride_dim,
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_m[:, None] & (offs_v < VALUE_SIZE)[None, :],
    )
    if lse_ptr is not None:
        tl.store(lse_ptr + tokens.to(tl.int64) * num_heads + heads, lse, mask=mask_m)


@triton.jit
def store_partial(partial_acc_ptr, partial_stats_ptr, rows, row_max, row_sum, acc, offs_v):
    """Leave the rows of a split to be added up."""
    tl.store(partial_acc_ptr + rows[:, None] * acc.shape[1] + offs_v[None, :], acc)
    tl.store(partial_stats_ptr + 2 * rows, row_max)
    tl.store(partial_stats_ptr + 2 * rows + 1, row_sum)


@triton.jit
def reduce_kernel(
    items_ptr,
    query_start_loc_ptr,
    out_ptr,
    lse_ptr,
    partial_acc_ptr,
    partial_stats_ptr,
    sinks_ptr,
    v_scale_ptr,
    # strides, in elements
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    # meta-parameters
    GROUP: tl.constexpr,
    HEADS_PER_TILE: tl.constexpr,
    TILES_H: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    ROW_INDEX: tl.constexpr,
):
    """Add up the splits of one row tile in their order, `BLOCK_R` of its rows a program."""
    pid_h = tl.program_id(0) % TILES_H
    item_ptr = items_ptr + tl.program_id(0) // TILES_H * ITEM_SIZE
    num_splits = tl.load(item_ptr + NUM_SPLITS)
    if num_splits <= 1:
        return
    offs_m = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    tokens, _, heads, mask_m = query_rows(
        item_ptr, query_start_loc_ptr, pid_h, offs_m,
        GROUP, HEADS_PER_TILE, BLOCK_M // HEADS_PER_TILE,
    )  # fmt: skip
    offs_v = tl.arange(0, BLOCK_V).to(ROW_INDEX)
    first_slot = tl.load(item_ptr + SLOT).to(tl.int64)
    row_max = tl.full([BLOCK_R], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)
    for split in tl.range(num_splits, num_stages=3):
        rows = ((first_slot + split) * TILES_H + pid_h) * BLOCK_M + offs_m
        partial_max = tl.load(partial_stats_ptr + 2 * rows)
        new_max = tl.maximum(row_max, partial_max)
        decay, weight = tl.math.exp2(row_max - new_max), tl.math.exp2(partial_max - new_max)
        row_sum = row_sum * decay + tl.load(partial_stats_ptr + 2 * rows + 1) * weight
        partial = tl.load(partial_acc_ptr + rows[:, None] * BLOCK_V + offs_v[None, :])
        acc = acc * decay[:, None] + partial * weight[:, None]
        row_max = new_max
    acc, lse = finish(row_max, row_sum, acc, sinks_ptr, v_scale_ptr, heads, mask_m)
    store_rows(
        out_ptr, lse_ptr, acc, lse, tokens, heads, mask_m, offs_v,
        stride_out_token, stride_out_head, stride_out_dim, VALUE_SIZE,
        TILES_H // tl.cdiv(GROUP, HEADS_PER_TILE) * GROUP,
    )  # fmt: skip
