"""Projections into a narrower space and back, for experts that work there."""

from __future__ import annotations

from torch import Tensor

from blockstride import kernels
from blockstride.models.modules.weights import LayerWeights


class Latent:
    """Two projections, whole on every rank.

    Args:
        weights: Tensors of this layer.
        names: What they call the projection in, and that back.
        hidden_size: Width of the residual stream.
        size: Width between them.
        has_bias: Whether they have biases.

    Raises:
        ValueError: A tensor is missing, damaged or misshapen.
    """

    def __init__(
        self,
        weights: LayerWeights,
        names: tuple[str, str],
        hidden_size: int,
        size: int,
        has_bias: bool,
    ) -> None:
        first, second = names
        self.first = weights.matrix(f"{first}.weight", size, hidden_size)
        self.second = weights.matrix(f"{second}.weight", hidden_size, size)
        self.first_bias = weights.tensor(f"{first}.bias", size) if has_bias else None
        self.second_bias = weights.addend(f"{second}.bias", hidden_size) if has_bias else None

    def enter(self, hidden: Tensor) -> Tensor:
        """Tokens in the narrower space."""
        return kernels.linear(hidden, self.first, self.first_bias)

    def leave(self, partial: Tensor) -> Tensor:
        """This rank's addend, from its addend in the narrower space."""
        return kernels.linear(partial, self.second, self.second_bias)
