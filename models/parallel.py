"""Tensor parallelism: a rank's share of every weight, and what ranks tell each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from blockstride.layouts import Interval, Shard


@dataclass(frozen=True)
class TensorParallel:
    """A rank among those that share a model; they talk in the default group of torch.distributed.

    Attributes:
        rank: Which one.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def share(
        self, name: str, extent: int, *, unit: int = 1, is_replicated: bool = False
    ) -> Interval:
        """This rank's part of an axis.

        Args:
            name: What the axis counts, for messages.
            extent: Its elements.
            unit: Elements that never part.
            is_replicated: Whether neighbouring ranks share a unit where there are too few.

        Raises:
            ValueError: The units can't be dealt to all ranks.
        """
        shard = Shard(name, extent, unit, is_replicated)
        return shard.of_rank(self.rank, self.size, "model").interval

    def all_reduce(
        self, partial: Float[Tensor, "num_tokens dim"]
    ) -> Float[Tensor, "num_tokens dim"]:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial

    def uneven_share(self, extent: int) -> Interval:
        """This rank's part of an axis that any number of ranks may cut; the last ones have less."""
        step = -(-extent // self.size)
        return Interval(min(self.rank * step, extent), min((self.rank + 1) * step, extent))

    def join_columns(
        self, columns: Float[Tensor, "num_rows share"], extent: int
    ) -> Float[Tensor, "num_rows extent"]:
        """The columns of all ranks side by side, each having those of its `uneven_share`."""
        # every rank knows the number of rows, so none waits for another in vain
        if self.size == 1 or len(columns) == 0:
            return columns if self.size == 1 else columns.new_empty(0, extent)
        step = -(-extent // self.size)
        mine = pad(columns, (0, step - columns.shape[1])).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine)
        return torch.cat(parts, dim=1)[:, :extent]
