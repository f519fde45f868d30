"""Store new keys and values in a paged cache of any stride order, optionally rotated and quantised.

One program writes one token's key and value, all heads, in accesses of 16 bytes a lane. With a
rotary embedding further programs rotate the token's query heads in place, and the key on its way to
the cache. Bytes per token: each key and value read once and written once, and the query read and
written if rotated; an unfused rotation would move the keys once more. Source of the idea: vLLM's
fused rope and cache write.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockstride.kernels.common.gpu.launching import (
    assertions,
    dense,
    dense_rows,
    index_dtype,
    next_power_of_2,
    warps_for,
)


@triton.jit
def quantised(x, scale_ptr, dtype: tl.constexpr):
    """`x / scale` in a cache's dtype: saturated, to the nearest value, ties to even."""
    if dtype == tl.float8e4nv or dtype == tl.int8:  # noqa: PLR1714 -- the compiler has no sets
        x = x.to(tl.float32)
        if scale_ptr is not None:
            # a product, clamped since what saturates would leave no remainder, then corrected by
            # the remainder: the exactly rounded quotient, at a third of the price of a division
            scale = tl.load(scale_ptr)
            # of what a scale of 0 reads back as 0, zero is the quotient that is a number
            inverse = tl.where(scale == 0.0, 0.0, tl.div_rn(1.0, scale))
            quotient = tl.clamp(x * inverse, -512.0, 512.0, propagate_nan=tl.PropagateNan.ALL)
            x = tl.fma(tl.fma(-quotient, scale, x), inverse, quotient)
        if dtype == tl.int8:
            x = tl.clamp(x, -128.0, 127.0)
            # 1.5 * 2**23: the sum has no bits below one, so the addition rounds as the hardware
            # does
            x = (x + 12582912.0) - 12582912.0
        else:
            x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def load_heads(heads_ptr, offs_d, mask, stride_dim, cos_ptr, sin_ptr, ROTARY_SIZE: tl.constexpr):
    """A token's heads; of each the first `ROTARY_SIZE` elements turn, in pairs half that apart."""
    x = tl.load(heads_ptr + offs_d[None, :] * stride_dim, mask=mask, other=0.0)
    if ROTARY_SIZE > 0:
        half: tl.constexpr = ROTARY_SIZE // 2
        mask_rotary = offs_d < ROTARY_SIZE
        partner = tl.where(offs_d < half, offs_d + half, offs_d - half)
        y = tl.load(
            heads_ptr + partner[None, :] * stride_dim, mask=mask & mask_rotary[None, :], other=0.0
        )
        cos = tl.load(cos_ptr + offs_d % half, mask=mask_rotary, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + offs_d % half, mask=mask_rotary, other=0.0).to(tl.float32)
        sin = tl.where(offs_d < half, -sin, sin)
        x = x.to(tl.float32) * cos[None, :] + y.to(tl.float32) * sin[None, :]
    return x


@triton.jit
def rotate_query(
    query_ptr, cos_ptr, sin_ptr, offset, stride_head, stride_dim, heads, offs_d,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, ROTARY_SIZE: tl.constexpr,
):  # fmt: skip
    """Rotate some query heads of one token in place."""
    if NUM_HEADS > 0:
        mask = (heads < NUM_HEADS)[:, None] & (offs_d < HEAD_SIZE)[None, :]
        heads_ptr = query_ptr + offset + (heads.to(tl.int64) * stride_head)[:, None]
        x = load_heads(heads_ptr, offs_d, mask, stride_dim, cos_ptr, sin_ptr, ROTARY_SIZE)
        # an element is read by the thread of its partner as well
        tl.debug_barrier()
        x = x.to(query_ptr.dtype.element_ty)
        tl.store(heads_ptr + offs_d[None, :] * stride_dim, x, mask=mask)


@triton.jit
def zero_tail(
    slot_mapping_ptr, token, slot, num_tokens, rows_ptr, mask, stride, SIZE: tl.constexpr
):
    """Zero what follows the last token of a block whose first token this step wrote too.

    The tokens of a sequence lie one after the other in `slot_mapping`, so a block is fresh if the
    token that far back filled its first slot, and this token is its last if the next one does not
    follow on.
    """
    offset = (slot % SIZE).to(tl.int32)
    first = token - offset
    is_fresh = tl.load(slot_mapping_ptr + first, mask=first >= 0, other=-1) == slot - offset
    following = tl.load(slot_mapping_ptr + token + 1, mask=token + 1 < num_tokens, other=-1)
    if is_fresh & (following != slot + 1):
        zeros = tl.zeros(mask.shape, rows_ptr.dtype.element_ty)
        for _ in range(offset + 1, SIZE):
            rows_ptr += stride
            tl.store(rows_ptr, zeros, mask=mask)


@triton.jit
def slot_rows(
    cache_ptr, block, offset, offs_h, offs_d, stride_block, stride_head: tl.constexpr,
    stride_token: tl.constexpr, stride_dim: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Where the heads of a slot lie."""
    cache_ptr += block * stride_block + offset * stride_token
    inner = offs_h.to(INDEX)[:, None] * stride_head
    return cache_ptr + (inner + offs_d.to(INDEX)[None, :] * stride_dim)


@triton.jit(do_not_specialize=["num_tokens"])
def kv_cache_update_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, k_scale_ptr, v_scale_ptr,
    query_ptr, cos_ptr, sin_ptr,
    # sizes
    num_tokens,
    # strides, in elements
    stride_key_token, stride_key_head, stride_key_dim,
    stride_value_token, stride_value_head, stride_value_dim,
    stride_key_cache_block, stride_key_cache_head: tl.constexpr,
    stride_key_cache_token: tl.constexpr, stride_key_cache_dim: tl.constexpr,
    stride_value_cache_block, stride_value_cache_head: tl.constexpr,
    stride_value_cache_token: tl.constexpr, stride_value_cache_dim: tl.constexpr,
    stride_query_token, stride_query_head, stride_query_dim, stride_cos_token, stride_sin_token,
    # meta-parameters
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, KV_BLOCK_SIZE: tl.constexpr, ROTARY_SIZE: tl.constexpr,
    ZERO_TAIL: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    INDEX: tl.constexpr, NEW_INDEX: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One token: its key and value (program 0 of the token) or some of its query heads."""
    # one axis, of which alone a grid may have more than 65,535
    programs: tl.constexpr = 1 + (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    token = tl.program_id(0) // programs
    pid_h = tl.program_id(0) % programs
    wide_token = token.to(tl.int64)
    offs_h = tl.arange(0, BLOCK_H)
    offs_d = tl.arange(0, BLOCK_D).to(NEW_INDEX)
    if ROTARY_SIZE > 0:
        cos_ptr += wide_token * stride_cos_token
        sin_ptr += wide_token * stride_sin_token
    if pid_h > 0:
        rotate_query(
            query_ptr, cos_ptr, sin_ptr, wide_token * stride_query_token,
            stride_query_head, stride_query_dim, (pid_h - 1) * BLOCK_H + offs_h, offs_d,
            NUM_HEADS, HEAD_SIZE, ROTARY_SIZE,
        )  # fmt: skip
        return

    slot = tl.load(slot_mapping_ptr + token)
    if slot < KV_BLOCK_SIZE:
        # negative: padding; the first block is the null block
        return
    block, offset = slot // KV_BLOCK_SIZE, slot % KV_BLOCK_SIZE
    if NUM_BLOCKS is not None:
        tl.device_assert(block < NUM_BLOCKS, "slot_mapping: a slot past the pool")
    head = offs_h.to(tl.int64)[:, None]
    offs_v = tl.arange(0, BLOCK_V).to(NEW_INDEX)
    mask_k = (offs_h < NUM_KV_HEADS)[:, None] & (offs_d < HEAD_SIZE)[None, :]
    mask_v = (offs_h < NUM_KV_HEADS)[:, None] & (offs_v < VALUE_SIZE)[None, :]
    key_ptr += wide_token * stride_key_token + head * stride_key_head
    value_ptr += wide_token * stride_value_token + head * stride_value_head
    key = load_heads(key_ptr, offs_d, mask_k, stride_key_dim, cos_ptr, sin_ptr, ROTARY_SIZE)
    value = load_heads(value_ptr, offs_v, mask_v, stride_value_dim, None, None, 0)
    key_rows = slot_rows(
        key_cache_ptr, block, offset, offs_h, offs_d, stride_key_cache_block,
        stride_key_cache_head, stride_key_cache_token, stride_key_cache_dim, INDEX,
    )  # fmt: skip
    value_rows = slot_rows(
        value_cache_ptr, block, offset, offs_h, offs_v, stride_value_cache_block,
        stride_value_cache_head, stride_value_cache_token, stride_value_cache_dim, INDEX,
    )  # fmt: skip
    tl.store(key_rows, quantised(key, k_scale_ptr, key_cache_ptr.dtype.element_ty), mask=mask_k)
    value = quantised(value, v_scale_ptr, value_cache_ptr.dtype.element_ty)
    tl.store(value_rows, value, mask=mask_v)
    if ZERO_TAIL:
        zero_tail(
            slot_mapping_ptr, token, slot, num_tokens,
            key_rows, mask_k, stride_key_cache_token, KV_BLOCK_SIZE,
        )  # fmt: skip
        zero_tail(
            slot_mapping_ptr, token, slot, num_tokens,
            value_rows, mask_v, stride_value_cache_token, KV_BLOCK_SIZE,
        )  # fmt: skip


def kv_cache_update(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    query: Tensor | None = None,
    zero_tail: bool = False,
) -> None:
    """See `blockstride.kernels.kv_cache_update`, which validates."""
    num_tokens, num_kv_heads, head_size = key.shape
    if num_tokens == 0:
        return
    cos, sin = (None, None) if rotary is None else map(dense_rows, rotary)
    new = (key, value) if query is None else (key, value, query)
    value_size = value.shape[-1]
    block_h, block_d = next_power_of_2(num_kv_heads), next_power_of_2(head_size)
    num_heads = query.shape[1] if query is not None else 0
    kv_cache_update_kernel[(num_tokens * (1 + -(-num_heads // block_h)),)](
        key,
        value,
        key_cache,
        value_cache,
        *dense(slot_mapping),
        k_scale,
        v_scale,
        query,
        cos,
        sin,
        num_tokens,
        *key.stride(),
        *value.stride(),
        *key_cache.stride(),
        *value_cache.stride(),
        *(query.stride() if query is not None else (0, 0, 0)),
        *(angle.stride(0) if angle is not None else 0 for angle in (cos, sin)),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_SIZE=head_size,
        VALUE_SIZE=value_size,
        KV_BLOCK_SIZE=key_cache.shape[2],
        ROTARY_SIZE=2 * cos.shape[1] if cos is not None else 0,
        ZERO_TAIL=zero_tail,
        BLOCK_H=block_h,
        BLOCK_D=block_d,
        BLOCK_V=next_power_of_2(value_size),
        INDEX=index_dtype(3, key_cache, value_cache),
        NEW_INDEX=index_dtype(1, *new),
        **assertions(NUM_BLOCKS=key_cache.shape[0]),
        num_warps=warps_for(block_h * block_d * key.element_size(), most=4),
        enable_fp_fusion=False,
    )
