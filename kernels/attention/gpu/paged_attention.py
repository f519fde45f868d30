"""Launch paged attention: plan the step if nobody has, walk the caches, add up what was split."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from blockstride.checks import checks_are_full
from blockstride.kernels.attention.gpu.attention_kernel import attention_kernel
from blockstride.kernels.attention.gpu.attention_schedule import WorkList, attention_schedule
from blockstride.kernels.attention.gpu.result_rows import reduce_kernel
from blockstride.kernels.attention.gpu.specialised import specialised_kernel
from blockstride.kernels.attention.gpu.tile import fits_descriptor, padded_size
from blockstride.kernels.common.gpu.launching import assertions, dense, dense_rows, index_dtype

DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
REDUCE_ROWS = 16


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
    schedule: tuple[WorkList, ...] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `blockstride.kernels.paged_attention`, which validates. Lengths are those of a schedule.

    Products are formed in the dtype that query and cache share, of a quantised cache in float16 (a
    bfloat16 query must stay below 65504), and in float32 if they share none.
    """
    num_tokens, num_heads, _ = query.shape
    value_size = value_cache.shape[-1]
    block_table = dense_rows(block_table)
    (sinks,) = dense(sinks)
    if out is None:
        out = query.new_empty((num_tokens, num_heads, value_size))
    lse = query.new_empty((num_tokens, num_heads), dtype=torch.float32) if return_lse else None
    if num_tokens > 0:
        if schedule is None:
            schedule = attention_schedule(
                query, key_cache, value_cache, block_table, seq_lens, query_start_loc, window=window
            )
        for work_list in schedule:
            _launch(
                work_list, query, key_cache, value_cache, block_table, scale, window, soft_cap,
                sinks, k_scale, v_scale, out, lse,
            )  # fmt: skip
    return (out, lse) if lse is not None else out


def _launch(
    work_list: WorkList,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    items, tile, seq_lens, query_start_loc, partial_acc, partial_stats = work_list
    _, num_kv_heads, block_size, head_size = key_cache.shape
    group, value_size = query.shape[1] // num_kv_heads, value_cache.shape[-1]
    tiles_h, block_v = partial_acc.shape[1], partial_acc.shape[3]
    block_d = block_v if tile.is_latent else padded_size(head_size)
    query_strides, out_strides = query.stride(), out.stride()
    key_strides, value_strides = key_cache.stride(), value_cache.stride()
    keys, values = key_cache, value_cache
    if tile.by_descriptor:
        keys, values = _descriptor(keys, tile.tokens), _descriptor(values, tile.tokens)
    plain = soft_cap is None and sinks is None and lse is None and scale > 0
    plain = plain and not checks_are_full()
    specialised = tile.specialised_tokens > 0 and plain and fits_descriptor(out[None], 1)
    # how the rows of a program lie in queries and results
    rows = {
        "GROUP": group,
        "HEADS_PER_TILE": tile.heads,
        "TILES_H": tiles_h,
        "VALUE_SIZE": value_size,
        "BLOCK_M": tile.rows,
        "BLOCK_V": block_v,
        "ROW_INDEX": index_dtype(1, query, out),
    }
    if specialised:
        _launch_specialised(work_list, query, key_cache, value_cache, block_table, scale, out)
    attention_kernel[(tiles_h * items.shape[0],)](
        query,
        keys,
        values,
        block_table,
        seq_lens,
        query_start_loc,
        items,
        out,
        lse,
        partial_acc,
        partial_stats,
        sinks,
        k_scale,
        v_scale,
        scale,
        window,
        *query_strides[:2],
        *key_strides[:2],
        *value_strides[:2],
        block_table.stride(0),
        *out_strides[:2],
        query_strides[2],
        *key_strides[2:],
        *value_strides[2:],
        out_strides[2],
        **rows,
        HEAD_SIZE=head_size,
        KV_BLOCK_SIZE=block_size,
        SOFT_CAP=soft_cap,
        DOT_DTYPE=_dot_dtype(query, key_cache, value_cache),
        PRECISION=tile.precision,
        INDEX=index_dtype(2, key_cache, value_cache),
        ANY_SIGN=k_scale is not None or not scale > 0,
        BY_DESCRIPTOR=tile.by_descriptor,
        IS_LATENT=tile.is_latent,
        SAME_STRIDES=key_strides == value_strides,
        SKIP_WHOLE=specialised,
        BLOCK_N=tile.tokens,
        BLOCK_D=block_d,
        BLOCK_TAIL=padded_size(head_size - block_d) if head_size > block_d else 0,
        NUM_STAGES=tile.num_stages,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
        **assertions(NUM_BLOCKS=key_cache.shape[0]),
    )
    reduce_rows = min(REDUCE_ROWS, tile.rows)
    reduce_kernel[(tiles_h * items.shape[0], tile.rows // reduce_rows)](
        items,
        query_start_loc,
        out,
        lse,
        partial_acc,
        partial_stats,
        sinks,
        v_scale,
        *out_strides,
        **rows,
        BLOCK_R=reduce_rows,
        num_warps=4,
        enable_fp_fusion=True,
    )


def _launch_specialised(
    work_list: WorkList,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    tokens, num_heads = work_list.tile.specialised_tokens, query.shape[1]
    # descriptors that a kernel makes live in memory that Triton asks for
    triton.set_allocator(_scratch)
    specialised_kernel[(num_heads * work_list.items.shape[0],)](
        query,
        _descriptor(key_cache, tokens),
        _descriptor(value_cache, tokens),
        block_table,
        work_list.seq_lens,
        work_list.query_start_loc,
        work_list.items,
        out,
        scale,
        *query.stride()[:2],
        block_table.stride(0),
        *out.stride()[:2],
        GROUP=num_heads // key_cache.shape[1],
        NUM_HEADS=num_heads,
        HEAD_SIZE=query.shape[2],
        KV_BLOCK_SIZE=key_cache.shape[2],
        BLOCK_M=work_list.tile.rows,
        BLOCK_N=tokens,
        num_warps=4,
        num_stages=2,
        enable_fp_fusion=True,
    )


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _descriptor(cache: Tensor, tokens: int) -> TensorDescriptor:
    """A tensor map that fetches `tokens` consecutive tokens of one head of one block."""
    box = [1, 1, tokens, cache.shape[3]]
    return TensorDescriptor(cache, list(cache.shape), list(cache.stride()), box)


def _dot_dtype(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> tl.dtype:
    if query.dtype == key_cache.dtype == value_cache.dtype:
        return DTYPES[query.dtype]
    quantised = key_cache.element_size() == value_cache.element_size() == 1
    return tl.float16 if quantised and query.element_size() == 2 else tl.float32
