"""Rotary positions: the angles by which queries and keys are turned."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride.checks import expect
from blockstride.models.batch import StepBatch

Angles = tuple[Float[Tensor, "num_tokens half"], Float[Tensor, "num_tokens half"]]


class Rotary:
    """Angles that grow with the position, more slowly from one pair of elements to the next.

    Args:
        size: Elements of a head that turn; they do in pairs, so an odd number counts as the next.
        head_size: Elements of a head.
        theta: Base of the geometric row of frequencies.

    Raises:
        ValueError: More elements than a head has, or none.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.
    """

    def __init__(self, size: int, head_size: int, theta: float) -> None:
        pairs = -(-size // 2)
        fits = 0 < 2 * pairs <= head_size
        expect(fits, "rotary size", f"from 1 to {head_size} elements of a head, in pairs", size)
        self.size, self.theta = size, theta
        self.frequencies: Float[Tensor, " half"] | None = None

    def to(self, device: torch.device) -> None:
        """Makes the frequencies where the model runs, for all layers that share them."""
        if self.frequencies is None:
            powers = torch.arange(0, self.size, 2, dtype=torch.float32, device=device) / self.size
            self.frequencies = 1.0 / self.theta**powers

    def angles(self, batch: StepBatch) -> Angles:
        """Cosine and sine of each token's angles; computed once a step for all layers."""
        assert self.frequencies is not None, "a layer that asks has loaded its weights"
        if self not in batch.angles:
            turns = batch.positions[:, None].float() * self.frequencies
            batch.angles[self] = (turns.cos(), turns.sin())
        return batch.angles[self]
