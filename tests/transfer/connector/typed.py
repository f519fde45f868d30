"""A hand-over between caches of different dtypes: values, not tags, and their rounded images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from blockstride.layouts import (
    CacheSpec,
    KVCacheLayout,
    StridedField,
    full_attention,
    mamba1,
    mamba2,
)
from blockstride.transfer import EngineTransferInfo
from blockstride.transfer.rank_cache import GroupCache
from tests.transfer.support import WEIGHTS, HandOver, storages


def model(kv_dtype: torch.dtype, state_dtype: torch.dtype, order: str) -> dict[str, CacheSpec]:
    attention = full_attention(4, 8, kv_dtype)
    one = mamba1(16, 4, 4, conv_dtype=torch.bfloat16, ssm_dtype=state_dtype, conv_order=order)
    two = mamba2(4, 4, 4, 4, conv_dtype=torch.bfloat16, ssm_dtype=state_dtype, conv_order=order)
    return {"a.0": attention, "m1.0": one, "m2.0": two, "a.1": attention}


@dataclass(frozen=True)
class Typed(HandOver):
    """Both engines have one rank, so that values can be compared token by token."""

    def source(self, rank: int) -> dict[int, np.ndarray]:
        """Memory in which every element of every field is a number."""
        memory = {pool: np.zeros_like(m) for pool, m in storages(self.remote, rank).items()}
        torch.manual_seed(0)
        for group in self.remote.rank_cache(rank).groups.values():
            for placed in group.placement.fields:
                for slot in group.slots.values():
                    view = _view(group, memory[group.pool], placed, slot)
                    view.copy_(torch.randn(view.shape) * 8)
        return memory

    def check(self, got: dict[int, np.ndarray], source: dict[int, np.ndarray]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compares each value that the request needs with the source's, rounded once."""
        ours = self.local.rank_cache(0).groups
        theirs = self.remote.rank_cache(0).groups
        request = self.request()
        for index, group in ours.items():
            other = theirs[index]
            for mine, his in zip(group.placement.fields, _by_name(group, other), strict=True):
                for slot in group.slots.values():
                    here = _rows(group, got[group.pool], mine, slot, request.local[index].ids)
                    there = _rows(other, source[other.pool], his, slot, request.remote[index].ids)
                    count = self.num_tokens if group.tokens else len(here)
                    wanted = there[:count].to(mine.field.dtype)
                    name = f"{group.spec.kind} {mine.field.name}"
                    assert torch.equal(here[:count].float(), wanted.float()), name


def _by_name(group: GroupCache, other: GroupCache) -> list[StridedField]:
    placed = {p.field.name: p for p in other.placement.fields}
    return [placed[p.field.name] for p in group.placement.fields]


def _view(group: GroupCache, memory: np.ndarray, placed: StridedField, slot: int) -> torch.Tensor:
    return group.placement.view(torch.from_numpy(memory.view(np.int8)), placed, slot)


def _rows(
    group: GroupCache,
    memory: np.ndarray,
    placed: StridedField,
    slot: int,
    ids: Sequence[int] | np.ndarray,
) -> torch.Tensor:
    """`[token or state, *axes by name]` of the blocks of a request."""
    view = _view(group, memory, placed, slot)[torch.as_tensor(np.asarray(ids), dtype=torch.long)]
    axes = placed.field.axes
    tokens = [i for i, axis in enumerate(axes, start=1) if axis.logical == "N"]
    rest = [i for i, axis in enumerate(axes, start=1) if axis.logical != "N"]
    view = view.permute(0, *tokens, *sorted(rest, key=lambda i: axes[i - 1].name))
    return view.flatten(0, 1) if tokens else view


def typed(
    kv: tuple[torch.dtype, torch.dtype], state: tuple[torch.dtype, torch.dtype], block_size: int
) -> Typed:
    """A sequence between a reader and a producer that differ in dtypes, orders and block sizes."""
    engines = [
        EngineTransferInfo(
            name,
            model(*dtypes, order),
            layout,
            "split",
            size,
            (12, 4, 4),
            model_fingerprint=WEIGHTS,
        )
        for name, dtypes, order, layout, size in (
            ("reader", (kv[0], state[0]), "DS", KVCacheLayout.LBHNC, block_size),
            ("producer", (kv[1], state[1]), "DS", KVCacheLayout.BHLNC, 4),
        )
    ]
    return Typed(engines[0], engines[1], 19)
