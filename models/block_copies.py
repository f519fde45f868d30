"""Copies of cache blocks between steps: what requests take over from others, and leave for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int32
from torch import Tensor
from torch.nn.functional import pad

from blockstride import kernels
from blockstride.layouts import GroupPlacement, KVCachePool


def copy_blocks(
    groups: Sequence[tuple[KVCachePool, GroupPlacement]],
    copies: Int32[Tensor, "num_copies 3"],
) -> None:
    """Copies blocks in all layers of their groups, one launch for each plane of a group.

    Args:
        groups: Pool and placement of each group.
        copies: Group, block that is read, and block that is written, on the CPU; none is both read
            and written.
    """
    for index in copies[:, 0].unique().tolist():
        pool, placement = groups[index]
        blocks = copies[copies[:, 0] == index, 1:]
        parts = torch.arange(placement.kernel_blocks, dtype=torch.int32)
        ids = (blocks.T[:, :, None] * placement.kernel_blocks + parts).flatten(1)
        # kernels are compiled anew for lists of other lengths than multiples of 16
        ids = pad(ids, (0, -ids.shape[1] % 16))
        sources, targets = ids.to(pool.storage.device)
        for plane in placement.planes(pool.storage):
            kernels.block_copy(plane, plane, sources, targets)
