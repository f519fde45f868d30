"""Norms of the queries and keys of each head, before they turn with their positions."""

from __future__ import annotations

from torch import Tensor

from blockstride import kernels
from blockstride.models.modules.weights import LayerWeights


class HeadNorm:
    """Two norms whose gains all heads share, one of queries and one of keys.

    Args:
        eps: Added to the mean square.
        offset: Added to the gains, where files have them less that.
        query: What tensors call the norm of queries,
        key: and that of keys.
    """

    def __init__(
        self, eps: float, *, offset: float = 0.0, query: str = "q_norm", key: str = "k_norm"
    ) -> None:
        self.eps, self.offset, self.names = eps, offset, (query, key)

    def load(self, weights: LayerWeights, head_size: int) -> None:
        """Reads the gains.

        Raises:
            ValueError: One is missing, damaged or misshapen.
        """
        read = [weights.tensor(f"{name}.weight", head_size) for name in self.names]
        self.gains = [gain + self.offset if self.offset else gain for gain in read]

    def forward(self, query: Tensor, key: Tensor) -> None:
        """Scales both in place `[num_tokens, heads, head_size]`."""
        for heads, gain in zip((query, key), self.gains, strict=True):
            kernels.rms_norm(heads, gain, self.eps, out=heads)
