"""Poison: a debugging mode that fills whatever a kernel may not read with values that show.

Pools of floating-point caches are filled with bytes of 0xFF, NaN in every dtype from fp8 to fp32:
one stray read turns a result into NaN. int8 has no NaN: pools that hold int8 fields get 0x7F, the
largest int8 and above 3e38 in bf16 and fp32. Kernels must give the same result with and without.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from blockstride.layouts.pool import NULL_BLOCK, KVCachePool

NAN_BYTE = -1
LARGE_BYTE = 0x7F


def poison_byte(pool: KVCachePool) -> int:
    """The byte with which a pool is filled, as int8."""
    fields = [placed.field for group in pool.layout.groups for placed in group.fields]
    return LARGE_BYTE if any(field.dtype == torch.int8 for field in fields) else NAN_BYTE


def poison_pool(pool: KVCachePool) -> None:
    """Fills the whole allocation: every block, the null block and all padding."""
    pool.storage.fill_(poison_byte(pool))


def poison_blocks(pool: KVCachePool, blocks: Iterable[int]) -> None:
    """Fills the fields of blocks that no sequence owns any more, in all groups and layer slots.

    Args:
        pool: The pool; its padding is left alone, since nothing writes there.
        blocks: Logical block ids.
    """
    _fill_fields(pool, pool.storage, sorted(set(blocks)), poison_byte(pool))


def padding_is_intact(pool: KVCachePool) -> bool:
    """Whether nothing outside the fields of real blocks was written since `poison_pool`.

    That is the null block, the padding of pages, and layer slots that a group does not use where no
    other group does.
    """
    owned = torch.zeros_like(pool.storage)
    _fill_fields(pool, owned, range(NULL_BLOCK + 1, pool.layout.num_blocks), 1)
    return bool((pool.storage[owned == 0] == poison_byte(pool)).all())


def _fill_fields(pool: KVCachePool, storage: Tensor, blocks: Iterable[int], byte: int) -> None:
    ids = torch.tensor(list(blocks), dtype=torch.int64, device=storage.device)
    for placement in pool.layout.groups:
        parts = torch.arange(placement.kernel_blocks, device=storage.device)
        rows = (ids[:, None] * placement.kernel_blocks + parts).flatten()
        for slot in range(len(placement.group.layer_names)):
            for placed in placement.fields:
                placement.byte_view(storage, placed, slot)[rows] = byte
