"""A stride order: which permutation of the logical axes [L, B, H, N, C] lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from blockstride.checks import expect

AXES = "LBHNC"
"""The logical shape, always in this order: layer slots, blocks, heads, tokens, content."""

ALIASES = {"HND": "LBHNC", "NHD": "LBNHC"}
"""The names that attention kernels use for the order of a page."""


@dataclass(frozen=True)
class KVCacheLayout:
    """Names the memory order of the logical axes, outermost first.

    A frozen value: two engines that compare equal here agree on every stride. `memory = logical`
    permuted by `stride_order`; `old.convert(memory, new)` goes old order -> logical -> new order.

    Attributes:
        order: A permutation of `"LBHNC"`, for example `"BLHNC"`.

    Raises:
        ValueError: `order` is not a permutation of the five axes.
    """

    order: str

    LBHNC: ClassVar[KVCacheLayout]
    LBNHC: ClassVar[KVCacheLayout]
    LHBNC: ClassVar[KVCacheLayout]
    BLHNC: ClassVar[KVCacheLayout]
    BLNHC: ClassVar[KVCacheLayout]
    BHLNC: ClassVar[KVCacheLayout]

    def __post_init__(self) -> None:
        expect(
            sorted(self.order) == sorted(AXES),
            "layout",
            f"a permutation of {AXES} or one of {', '.join(ALIASES)}",
            repr(self.order),
        )

    @classmethod
    def parse(cls, name: str | KVCacheLayout) -> KVCacheLayout:
        """The layout called `name`: any permutation of `LBHNC`, `HND` or `NHD`, in either case.

        Raises:
            ValueError: No layout has that name.
        """
        if isinstance(name, KVCacheLayout):
            return name
        return cls(ALIASES.get(name.upper(), name.upper()))

    @cached_property
    def stride_order(self) -> tuple[int, ...]:
        """Memory axis `i` is logical axis `stride_order[i]`, as `Tensor.permute` takes it."""
        return tuple(AXES.index(axis) for axis in self.order)

    @cached_property
    def inverse_order(self) -> tuple[int, ...]:
        """Logical axis `i` is memory axis `inverse_order[i]`."""
        return tuple(self.order.index(axis) for axis in AXES)

    @cached_property
    def outer(self) -> str:
        """The axes down to the last of L and B: each of their elements is one *cell*."""
        return self.order[: self._cell_start]

    @cached_property
    def inner(self) -> str:
        """The axes inside a cell: what one layer slot of one block keeps in one run."""
        return self.order[self._cell_start :]

    @property
    def _cell_start(self) -> int:
        return max(self.order.index("L"), self.order.index("B")) + 1

    @property
    def is_block_outermost(self) -> bool:
        """All layers of one block are one run."""
        return self.order[0] == "B"

    @property
    def is_block_compact(self) -> bool:
        """A page, one block of one layer, is one run in some order of its heads and tokens."""
        return set(self.order[2:]) == set("HNC")

    @property
    def is_content_innermost(self) -> bool:
        """The content of one (head, token) is one run, as vector accesses and typed pages need."""
        return self.order[-1] == "C"

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Element strides, in logical order, of a dense array of logical `shape` in this order."""
        expect(len(shape) == len(AXES), "shape", f"{len(AXES)} extents [{AXES}]", tuple(shape))
        strides, stride = [0] * len(AXES), 1
        for axis in reversed(self.stride_order):
            strides[axis] = stride
            stride *= shape[axis]
        return tuple(strides)

    def to_logical(self, memory: Tensor) -> Tensor:
        """View of a tensor whose dimensions are in memory order, as [L, B, H, N, C]. No copy."""
        self._expect_rank(memory, "memory")
        return memory.permute(self.inverse_order)

    def to_memory(self, logical: Tensor) -> Tensor:
        """View of a logical [L, B, H, N, C] tensor with its dimensions in memory order. No copy."""
        self._expect_rank(logical, "logical")
        return logical.permute(self.stride_order)

    def convert(self, memory: Tensor, target: KVCacheLayout) -> Tensor:
        """Dense copy, in `target`'s order, of a tensor whose dimensions are in this order."""
        # not .contiguous(), which returns its argument when there is nothing to do
        view = target.to_memory(self.to_logical(memory))
        return view.clone(memory_format=torch.contiguous_format)

    def _expect_rank(self, tensor: Tensor, name: str) -> None:
        expect(tensor.dim() == len(AXES), name, f"{len(AXES)} dimensions", tuple(tensor.shape))

    def __str__(self) -> str:
        return self.order


NAMED_LAYOUTS = tuple(
    KVCacheLayout(order) for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
)
"""The orders that have a use of their own; any other permutation can be made by its name."""

for _layout in NAMED_LAYOUTS:
    setattr(KVCacheLayout, _layout.order, _layout)
