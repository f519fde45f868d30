"""Norms of all queries and of all keys of a token, before they turn with their positions."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.models.checkpoint import Part
from blockstride.models.modules.weights import LayerWeights


class WidthNorm:
    """Two norms, each over the elements of all heads: one of queries and one of keys.

    Ranks have some heads each, so they add up their squares.

    Args:
        eps: Added to the mean square.
        num_heads: Query heads.
        num_kv_heads: KV heads.
    """

    def __init__(self, eps: float, num_heads: int, num_kv_heads: int) -> None:
        self.eps, self.heads = eps, (num_heads, num_kv_heads)

    def load(self, weights: LayerWeights, head_size: int) -> None:
        """Reads the gains of the rank's heads.

        Raises:
            ValueError: One is missing, damaged or misshapen.
        """
        self.parallel = tp = weights.parallel
        self.gains: list[Tensor] = []
        counts: list[int] = []
        for name, heads in zip(("q_norm", "k_norm"), self.heads, strict=True):
            size = heads * head_size
            mine = tp.share(f"{name}.weight", size, unit=head_size, is_replicated=name == "k_norm")
            self.gains.append(weights.tensor(f"{name}.weight", size, part=Part(0, mine)))
            # a head that ranks share counts once for each of them
            counts.append(tp.size * mine.size)
        self.counts = torch.tensor(counts, dtype=torch.float32, device=weights.device)

    def forward(self, query: Tensor, key: Tensor) -> None:
        """Scales both in place `[num_tokens, heads, head_size]`."""
        rows = [heads.view(len(heads), -1) for heads in (query, key)]
        if self.parallel.size == 1:
            for row, gain in zip(rows, self.gains, strict=True):
                kernels.rms_norm(row, gain, self.eps, out=row)
            return
        squares = torch.stack([row.float().square().sum(1) for row in rows], dim=1)
        scales = torch.rsqrt(self.parallel.all_reduce(squares) / self.counts + self.eps)
        for row, gain, scale in zip(rows, self.gains, scales.split(1, dim=1), strict=True):
            row.copy_(row.float() * scale * gain)
