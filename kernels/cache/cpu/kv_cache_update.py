"""Writing new keys and values into a paged cache, for CPUs.

Casting and quantising is left to torch, on the new tokens alone; a program then moves their bits. A
task is a few tokens, all heads, keys and values.
"""

import numpy as np
import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.kernels.cache.cpu.moves import move_row
from blockstride.kernels.cache.cpu.rotary import turn, turned
from blockstride.kernels.common.cpu.native import (
    Program,
    arguments,
    claim,
    i64_at,
    inlined,
    is_padding,
    num_tasks,
)
from blockstride.kernels.common.cpu.tensors import FLOAT8, to_float8

TOKENS_PER_TASK = 32


@inlined
def _store(
    rows, cache, token, block, offset, num_kv_heads, size, itemsize,
    stride_token, stride_head, stride_content,
    stride_cache_block, stride_cache_head, stride_cache_offset, stride_cache_content,
):  # fmt: skip
    """Write the heads of one token."""
    source = rows + itemsize * token * stride_token
    target = cache + itemsize * (block * stride_cache_block + offset * stride_cache_offset)
    for _ in range(num_kv_heads):
        move_row(target, source, size, stride_cache_content, stride_content, itemsize)
        source += itemsize * stride_head
        target += itemsize * stride_cache_head


@Program
def _update(address):
    (
        slot_mapping, num_tokens, num_kv_heads, num_blocks, block_size,
        key, key_cache, key_size, key_bytes, key_0, key_1, key_2, keys_0, keys_1, keys_2, keys_3,
        value, value_cache, value_size, value_bytes,
        value_0, value_1, value_2, values_0, values_1, values_2, values_3,
    ) = arguments(address, 27)  # fmt: skip
    task = claim(address)
    while task < num_tasks(address):
        first = task * TOKENS_PER_TASK
        task = claim(address)
        for token in range(first, min(first + TOKENS_PER_TASK, num_tokens)):
            slot = i64_at(slot_mapping)[token]
            block, offset = slot // block_size, slot % block_size
            if is_padding(address, block, num_blocks):
                continue
            _store(
                key, key_cache, token, block, offset, num_kv_heads, key_size, key_bytes,
                key_0, key_1, key_2, keys_0, keys_1, keys_2, keys_3,
            )  # fmt: skip
            _store(
                value, value_cache, token, block, offset, num_kv_heads, value_size, value_bytes,
                value_0, value_1, value_2, values_0, values_1, values_2, values_3,
            )  # fmt: skip


def kv_cache_update(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    rotary: tuple[Tensor, Tensor] | None,
    query: Tensor | None,
    zero_tail: bool,
) -> None:
    """See `blockstride.kernels.kv_cache_update`."""
    if rotary is not None:
        key = turned(key, *rotary)
        if query is not None:
            turn(query, *rotary)
    key, value = _stored(key, key_cache.dtype, k_scale), _stored(value, value_cache.dtype, v_scale)
    num_tokens, num_kv_heads, key_size = key.shape
    num_blocks, _, block_size, value_size = value_cache.shape
    slot_mapping = slot_mapping.contiguous()
    fault = _update(
        -(-num_tokens // TOKENS_PER_TASK), 4,
        slot_mapping.data_ptr(), num_tokens, num_kv_heads, num_blocks, block_size,
        key.data_ptr(), key_cache.data_ptr(), key_size, key.itemsize,
        *key.stride(), *key_cache.stride(),
        value.data_ptr(), value_cache.data_ptr(), value_size, value.itemsize,
        *value.stride(), *value_cache.stride(),
    )  # fmt: skip
    if fault:
        got = f"one in block {fault}"
        expect(False, "slot_mapping", f"slots below {num_blocks * block_size}", got)
    if zero_tail:
        _zero_tails(slot_mapping, key_cache, value_cache)


def _zero_tails(slot_mapping: Tensor, *caches: Tensor) -> None:
    """Zero what follows the last token of each block whose first token is among these too."""
    block_size = caches[0].shape[2]
    slots = slot_mapping.numpy()
    offsets = slots % block_size
    first = np.arange(len(slots)) - offsets
    is_fresh = (first >= 0) & (slots[first.clip(min=0)] == slots - offsets) & (slots >= block_size)
    ends = np.append(slots[1:], -1) != slots + 1
    last = slots[is_fresh & ends]
    tail = np.arange(block_size) > (last % block_size)[:, None]
    entry, offset = (torch.from_numpy(index) for index in tail.nonzero())
    block = torch.from_numpy(last // block_size)[entry]
    for cache in caches:
        # zero is all bits zero in every dtype
        bits = cache.view(torch.int8) if cache.itemsize == 1 else cache
        bits[block, :, offset] = 0


def _stored(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """New tokens as the cache holds them."""
    if x.dtype is dtype:
        return x
    if dtype not in {FLOAT8, torch.int8}:
        return x.to(dtype)
    if scale is None:
        x = x.float()
    elif scale == 0:
        # whatever is stored is read back as 0
        x = x.float() * 0.0
    else:
        x = x.float() / scale
    return to_float8(x) if dtype is FLOAT8 else x.round().clamp(-128, 127).to(dtype)
