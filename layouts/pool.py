"""Pools: one allocation, one block id space, and the views that layers and movers take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

import numpy as np
import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.layouts.groups import CacheGroup
from blockstride.layouts.kv_cache_layout import KVCacheLayout
from blockstride.layouts.page import align
from blockstride.layouts.placement import GroupPlacement, page_demand
from blockstride.layouts.spec import CacheSpec, Views

NULL_BLOCK = 0
"""Never handed out; a block id <= 0 in a table is padding."""


@dataclass(frozen=True)
class PoolLayout:
    """One pool: groups that draw from one block id space, and where everything lies.

    Attributes:
        groups: Placement of each group; all span the same slots, blocks and `page_bytes`.
        layout: Stride order.
        num_slots: Layer slots, as many as the largest group has layers.
        num_blocks: Blocks, the null block included.
        page_bytes: Bytes of a block in one slot, padding included.
    """

    groups: tuple[GroupPlacement, ...]
    layout: KVCacheLayout
    num_slots: int
    num_blocks: int
    page_bytes: int

    @classmethod
    def of(
        cls,
        groups: Sequence[CacheGroup],
        *,
        layout: KVCacheLayout,
        num_blocks: int,
        block_size: int,
        kernel_block_size: int | None = None,
    ) -> PoolLayout:
        """Lays out groups that share a block id space.

        Args:
            groups: Groups of this rank's specs.
            layout: Stride order of the pool.
            num_blocks: Blocks, the null block included.
            block_size: Tokens per block.
            kernel_block_size: Tokens per block that kernels see, a divisor of `block_size`; None:
                all.

        Raises:
            ValueError: Sizes that do not divide, or an order in which groups of different pages
                would lie across each other's blocks.
        """
        expect(block_size > 0, "block_size", "a positive number of tokens", block_size)
        kernel_block_size = block_size if kernel_block_size is None else kernel_block_size
        divides = kernel_block_size > 0 and block_size % kernel_block_size == 0
        expect(divides, "kernel_block_size", f"a divisor of {block_size}", kernel_block_size)
        split = block_size // kernel_block_size
        demands, kernel_blocks = [], []
        for group in groups:
            page = group.spec.page(kernel_block_size)
            kernel_blocks.append(split if group.spec.has_tokens else 1)
            demands.append(page_demand(page, layout, kernel_blocks[-1]))
        # a block belongs to one group at a time, so its bytes must be a region of its own
        alike = len({group.spec.page(kernel_block_size) for group in groups}) == 1
        expect(
            alike or layout.is_block_outermost or layout.is_block_compact,
            "layout",
            "H, N and C inside B, or B outermost, where groups of different pages share blocks",
            layout,
        )
        page_bytes = align(
            max(needed for needed, _ in demands), lcm(*(quantum for _, quantum in demands))
        )
        slots = max(len(group.layer_names) for group in groups)
        placements = tuple(
            GroupPlacement(group, layout, slots, num_blocks, block_size, k, page_bytes)
            for group, k in zip(groups, kernel_blocks, strict=True)
        )
        return cls(placements, layout, slots, num_blocks, page_bytes)

    def with_blocks(self, num_blocks: int) -> PoolLayout:
        """The same pool with another number of blocks."""
        groups = tuple(replace(placement, num_blocks=num_blocks) for placement in self.groups)
        return replace(self, groups=groups, num_blocks=num_blocks)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all layer slots."""
        return self.num_slots * self.page_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the allocation."""
        return self.num_blocks * self.block_bytes

    @cached_property
    def slots(self) -> dict[str, tuple[GroupPlacement, int]]:
        """Layer name -> its group and its slot."""
        return {
            name: (placement, slot)
            for placement in self.groups
            for slot, name in enumerate(placement.group.layer_names)
        }


class KVCachePool:
    """The memory of a pool: one allocation, zeroed lazily by the system, and its views.

    Args:
        layout: What `plan_pools` made.
        device: Where to allocate.
    """

    def __init__(self, layout: PoolLayout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        device = torch.device(device)
        if device.type == "cpu":
            # numpy gets zeroed pages that the system maps when touched; torch would write them
            self.storage = torch.from_numpy(np.zeros(layout.nbytes, np.int8))
        else:
            self.storage = torch.zeros(layout.nbytes, dtype=torch.int8, device=device)

    def raw(self, layer_name: str) -> Tensor:
        """Raw storage of a layer, as `bind_kv_cache` takes it.

        `[num_blocks, H, N, C]` in the cache dtype for attention, with a plane axis second where K
        and V are planes, and `[num_blocks, 1, 1, page_bytes]` int8 for states. Blocks are kernel
        blocks.

        Raises:
            ValueError: The pool has no such layer.
        """
        slots = self.layout.slots
        expect(layer_name in slots, "layer_name", f"one of {list(slots)}", repr(layer_name))
        placement, slot = slots[layer_name]
        return placement.raw(self.storage, slot)

    def bind(self, layer_name: str, spec: CacheSpec[Views]) -> Views:
        """Typed views of a layer for its kernels: `spec.bind_kv_cache` of the layer's storage.

        Raises:
            ValueError: The pool has no such layer, or laid it out for another spec: two specs never
                see one buffer in different ways.
        """
        raw = self.raw(layer_name)
        owner = self.layout.slots[layer_name][0].group.spec
        expect(spec == owner, layer_name, f"the spec it was laid out with, {owner}", spec)
        return spec.bind_kv_cache(raw)

    def block_rows(self) -> tuple[Tensor, ...]:
        """Block-major byte views `[num_blocks, nbytes]` int8, for whoever only moves bytes.

        One view of whole blocks where blocks are outermost, else one a layer slot, of pages.
        Together they are the whole allocation, and row `b` of each is all that block `b` owns.

        Raises:
            ValueError: An order in which neither a block nor a page is one run.
        """
        layout = self.layout
        if layout.layout.is_block_outermost:
            return (self.storage.view(layout.num_blocks, layout.block_bytes),)
        compact = layout.layout.is_block_compact
        expect(compact, "layout", "an order that keeps a page or a block in one run", layout.layout)
        shape = (layout.num_slots, layout.num_blocks, layout.page_bytes)
        return self.storage.view(shape).unbind()
