"""Adapters: projections of low rank beside others, which layers have that share those others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.modules.weights import LayerWeights


class Adapters:
    """What is added to some projections of the same tokens; their results stand side by side.

    Args:
        weights: Tensors of the adapters.
        rows: What tensors call each -> its rows on all ranks, and this rank's parts of them.
        dim: Width of what is projected.
        rank: Width in between, which no rank shares.

    Raises:
        ValueError: A tensor is missing, damaged or misshapen.

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 4.1.
    """

    def __init__(
        self,
        weights: LayerWeights,
        rows: Mapping[str, tuple[int, Sequence[Interval]]],
        dim: int,
        rank: int,
    ) -> None:
        first = [weights.tensor(f"{name}.0.weight", rank, dim) for name in rows]
        self.first, self.rank = kernels.pack_weight(torch.cat(first)), rank
        self.second = [
            weights.rows(f"{name}.1.weight", parts, total, rank)
            for name, (total, parts) in rows.items()
        ]

    def forward(self, hidden: Tensor) -> Tensor:
        """What to add for each token."""
        low = kernels.linear(hidden, self.first).split(self.rank, dim=1)
        return torch.cat(
            [kernels.linear(part, second) for part, second in zip(low, self.second, strict=True)],
            dim=1,
        )
