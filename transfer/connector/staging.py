"""Areas of registered memory, and the copies between them: whole runs, or casts field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from blockstride.kernels import block_copy, copy_runs
from blockstride.layouts import StridedField
from blockstride.transfer.byte_ranges import byte_ranges
from blockstride.transfer.connector.pairing import Pairing
from blockstride.transfer.copy_plan import CopyPlan, Indices
from blockstride.transfer.nixl import Memory, TransferAgent
from blockstride.transfer.rank_cache import GroupCache
from blockstride.transfer.request import BlockIds

Storages = Mapping[int, Tensor]
"""Pool -> its bytes, int8."""


class Area:
    """Registered memory in the shape of one rank of an engine: its pools, or a staging area.

    Args:
        agent: Who registers it.
        storages: The memory.
    """

    def __init__(self, agent: TransferAgent, storages: Storages) -> None:
        self.storages = dict(storages)
        self._agent, self._registration = agent, agent.register(self.storages)

    @property
    def memory(self) -> Memory:
        """Where it is."""
        return self._registration.memory

    def release(self) -> None:
        """Gives the memory back, which no posting may use."""
        self._agent.deregister(self._registration)
        self.storages = {}


def load_programs() -> None:
    """Has what copies on CPUs read from files, or compiled: it copies a byte and casts a number."""
    byte, number = torch.zeros(2, 1, dtype=torch.int8), torch.zeros(2, 1, 2, 1, 1, 1)
    nothing, block = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int32)
    copy_runs(byte[0], byte[1], nothing, nothing, nothing + 1)
    block_copy(number[0], number[1].to(torch.bfloat16), block, block)


def copy_here(copy: CopyPlan, indices: Indices, local: Storages, remote: Storages) -> None:
    """Copies what a plan says between two memories of this process.

    Args:
        copy: The plan.
        indices: Index arrays that it made.
        local: Storages that are written.
        remote: Storages that are read.
    """
    to, start = byte_ranges(copy, indices, "local"), byte_ranges(copy, indices, "remote")
    pairs = np.stack([to.pool, start.pool], axis=1)
    for target, source in np.unique(pairs, axis=0).tolist():
        which = np.flatnonzero((to.pool == target) & (start.pool == source))
        device = local[target].device
        columns = (start.first[which], to.first[which], to.length[which])
        runs = (torch.from_numpy(column).to(device) for column in columns)
        copy_runs(remote[source], local[target], *runs)


def cast_here(pairing: Pairing, local: Sequence[BlockIds], area: Storages, pools: Storages) -> None:
    """Casts a request's blocks from its staging area into the pools.

    Args:
        pairing: The plan whose local side is the staging area.
        local: Blocks of the pools to fill.
        area: Storages of the staging area.
        pools: Storages of the pools.
    """
    staged = pairing.targets(local)
    theirs = pairing.plan.local.rank_cache(pairing.rank).groups
    for index, group in pairing.reader.rank_cache(pairing.rank).groups.items():
        blocks = [
            _kernel_blocks(ids[index].ids, cache).to(pools[group.pool].device)
            for ids, cache in ((staged, theirs[index]), (local, group))
        ]
        placed = zip(theirs[index].placement.fields, group.placement.fields, strict=True)
        for source, target in placed:
            for slot in group.slots.values():
                block_copy(
                    _logical(area[theirs[index].pool], theirs[index], source, slot),
                    _logical(pools[group.pool], group, target, slot),
                    *blocks,
                )


def _kernel_blocks(ids: np.ndarray, group: GroupCache) -> Tensor:
    """Ids of the kernel blocks of some blocks."""
    split = group.placement.kernel_blocks
    steps = np.arange(split, dtype=np.int32)
    return torch.from_numpy((ids[:, None] * np.int32(split) + steps).ravel())


def _logical(storage: Tensor, group: GroupCache, placed: StridedField, slot: int) -> Tensor:
    """`[1, B, H, N, C]` of one slot of a field: axes after the first one are flattened into C."""
    view = group.placement.view(storage, placed, slot)
    names = [axis.logical for axis in placed.field.axes]
    view = view.movedim(1 + names.index("N"), 1) if "N" in names else view.unsqueeze(1)
    view = view.unsqueeze(2) if view.dim() == 3 else view
    # not flatten, which would copy where it can't make a view
    view = view.view(*view.shape[:3], -1)  # [B, N, H, C]
    return view.transpose(1, 2).unsqueeze(0)
