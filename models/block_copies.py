"""Copies of cache blocks between steps: what requests take over from others, and leave for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int32
from torch import Tensor
from torch.nn.functional import pad

from blockstride import kernels
from blockstride.layouts import GroupPlacement, KVCachePool

Groups = Sequence[tuple[KVCachePool, GroupPlacement]]
"""Pool and placement of each group."""


def copy_blocks(
    groups: Groups, copies: Int32[Tensor, "num_copies 3"], into: Groups | None = None
) -> None:
    """Copies blocks in all layers of their groups, one launch for each plane of a group.

    Args:
        groups: What is read.
        copies: Group, block that is read, and block that is written, on the CPU; none is both read
            and written.
        into: What is written, laid out alike, maybe on another device; the same when None.
    """
    for index in copies[:, 0].unique().tolist():
        pool, placement = groups[index]
        target, placed = (into or groups)[index]
        blocks = copies[copies[:, 0] == index, 1:]
        parts = torch.arange(placement.kernel_blocks, dtype=torch.int32)
        ids = (blocks.T[:, :, None] * placement.kernel_blocks + parts).flatten(1)
        pairs = zip(placement.planes(pool.storage), placed.planes(target.storage), strict=True)
        if pool.storage.device != target.storage.device:
            for source, written in pairs:
                move_blocks(source, written, ids.long())
            continue
        # kernels are compiled anew for lists of other lengths than multiples of 16
        ids = pad(ids, (0, -ids.shape[1] % 16))
        sources, targets = ids.to(pool.storage.device)
        for source, written in pairs:
            kernels.block_copy(source, written, sources, targets)


def move_blocks(source: Tensor, target: Tensor, ids: Tensor) -> None:
    """Copies kernel blocks `ids[0]` of a plane to `ids[1]` of one on another device."""
    if source.dtype.itemsize == 1:
        # of types that can't be indexed
        source, target = source.view(torch.int8), target.view(torch.int8)
    found = source.index_select(1, ids[0].to(source.device))
    target.index_copy_(1, ids[1].to(target.device), found.to(target.device))
