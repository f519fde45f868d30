"""What the ranks of an engine say to each other; see `messages`.

Blocks are, for each group, the first position of a block table that counts, and ids from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from blockstride.models.batch import GroupTable, StepBatch

GroupBlocks = list[tuple[int, Int32[np.ndarray, " _"]]]


# from rank 0 to all ranks, itself among them


@dataclass(frozen=True)
class Join:
    """To followers: all ranks have loaded, and meet now."""


@dataclass(frozen=True)
class Forward:
    """Compute a batch."""

    values: dict[str, Any] = field(repr=False)
    tables: list[tuple[np.ndarray, np.ndarray | None]] = field(repr=False)

    @classmethod
    def of(cls, batch: StepBatch) -> Forward:
        """Arrays instead of tensors, which would be pickled as shared memory."""
        made = {"tables", "schedules", "angles"}
        names = [f.name for f in fields(batch) if f.name not in made]
        return cls(
            {name: _array(getattr(batch, name)) for name in names},
            [(_array(table.block_table), _array(table.slot_mapping)) for table in batch.tables],
        )

    @property
    def batch(self) -> StepBatch:
        """What was sent."""
        tables = tuple(GroupTable(_tensor(ids), _tensor(slots)) for ids, slots in self.tables)
        values: dict[str, Any] = {name: _tensor(value) for name, value in self.values.items()}
        return StepBatch(tables=tables, **values)


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Poison:
    """Fill freed blocks of each pool with NaN."""

    blocks: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Offer:
    """Hold blocks for readers."""

    name: str
    num_tokens: int
    blocks: GroupBlocks


@dataclass(frozen=True)
class Withdraw:
    """Don't hold them any more."""

    name: str


@dataclass(frozen=True)
class Load:
    """Read blocks from the engine that holds them, under a name of its own."""

    name: str
    num_tokens: int
    blocks: GroupBlocks
    source: str
    held_as: str


@dataclass(frozen=True)
class GiveUp:
    """Don't read them any more."""

    name: str


# from every rank to rank 0


@dataclass(frozen=True)
class Listening:
    """A rank has loaded its part of the model; "" when it hands nothing over."""

    address: str


@dataclass(frozen=True)
class Offered:
    """This rank holds the blocks."""

    name: str


@dataclass(frozen=True)
class LeaseOver:
    """It doesn't hold them any more."""

    name: str


@dataclass(frozen=True)
class Arrived:
    """Its part of a load has ended, well if there is no error."""

    name: str
    error: str


@dataclass(frozen=True)
class Changed:
    """To a rank from itself: its hand-overs have brought something."""


@dataclass(frozen=True)
class Settled:
    """Nothing writes to the blocks of a load any more."""

    name: str
