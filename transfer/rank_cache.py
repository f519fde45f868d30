"""What one rank of an engine caches: its groups, where they lie, and which tokens they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from blockstride.layouts import CacheSpec, GroupPlacement
from blockstride.transfer.tokens import TokenAxis


@dataclass(frozen=True)
class GroupCache:
    """One group of layers as one rank holds it.

    Attributes:
        index: The group's number in its engine, by which requests name its block ids.
        pool: The number of its pool among the engine's.
        placement: Where every element lies.
        tokens: How the rank keeps the tokens of a sequence; None for states.
    """

    index: int
    pool: int
    placement: GroupPlacement
    tokens: TokenAxis | None

    @property
    def spec(self) -> CacheSpec:
        """The part of the spec that the rank holds."""
        return self.placement.group.spec

    @cached_property
    def slots(self) -> dict[str, int]:
        """Layer name -> slot of the pool."""
        return {name: slot for slot, name in enumerate(self.placement.group.layer_names)}

    def can_split(self, block_size: int) -> bool:
        """Whether a block is blocks of `block_size` tokens, one after the other in memory."""
        if self.tokens is None or self.tokens.block_size % block_size:
            return False
        kernel_block_size = self.tokens.block_size // self.placement.kernel_blocks
        return block_size % kernel_block_size == 0 or tokens_are_outermost(self.placement)


@dataclass(frozen=True)
class RankCache:
    """All that one rank caches.

    Attributes:
        groups: Group number -> group, for the groups that have layers on this rank.
        pool_bytes: Pool number -> bytes of its allocation.
    """

    groups: Mapping[int, GroupCache]
    pool_bytes: Mapping[int, int]


def tokens_are_outermost(placement: GroupPlacement) -> bool:
    """Whether the tokens of a block, and then those of the next, follow at one stride."""
    kernel_block_size = placement.block_size // placement.kernel_blocks
    return all(
        stride * kernel_block_size == placed.block_stride
        for placed in placement.fields
        for axis, stride in zip(placed.field.axes, placed.strides, strict=True)
        if axis.logical == "N"
    )
