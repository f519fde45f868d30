"""Rotary positions: the angles by which queries and keys are turned."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride.checks import expect
from blockstride.models.batch import StepBatch
from blockstride.models.modules.rope_scaling import Scaling

Angles = tuple[Float[Tensor, "num_tokens half"], Float[Tensor, "num_tokens half"]]


class Rotary:
    """Angles that grow with the position, more slowly from one pair of elements to the next.

    Args:
        size: Elements of a head that turn; they do in pairs, so an odd number counts as the next.
        head_size: Elements of a head.
        theta: Base of the geometric row of frequencies.
        scaling: How the row is changed for long sequences.

    Raises:
        ValueError: More elements than a head has, or none.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.
    """

    def __init__(
        self, size: int, head_size: int, theta: float, scaling: Scaling | None = None
    ) -> None:
        pairs = -(-size // 2)
        fits = 0 < 2 * pairs <= head_size
        expect(fits, "rotary size", f"from 1 to {head_size} elements of a head, in pairs", size)
        self.size, self.theta, self.scaling = size, theta, scaling or Scaling()
        self.frequencies: Float[Tensor, "*rows half"] | None = None

    def to(self, device: torch.device) -> None:
        """Makes the frequencies where the model runs, for all layers that share them."""
        if self.frequencies is None:
            self.frequencies = self.scaling.frequencies(self.theta, self.size, device)

    def angles(self, batch: StepBatch) -> Angles:
        """Cosine and sine of each token's angles; computed once a step for all layers."""
        if self not in batch.angles:
            turns = batch.positions[:, None].float() * self._frequencies_of_tokens(batch)
            cos, sin, scale = turns.cos(), turns.sin(), self.scaling.scale
            batch.angles[self] = (cos, sin) if scale == 1 else (cos.mul_(scale), sin.mul_(scale))
        return batch.angles[self]

    def _frequencies_of_tokens(self, batch: StepBatch) -> Float[Tensor, "tokens_or_1 half"]:
        """A row for each new token, or one for all."""
        assert self.frequencies is not None, "a layer that asks has loaded its weights"
        if not self.scaling.depends_on_length:
            return self.frequencies[None]
        rows = self.scaling.of_lengths(batch.known_lens, self.theta, self.frequencies)
        counts = batch.query_start_loc.diff()
        # its size is known on the host, so that nothing waits for the device
        return rows.repeat_interleave(counts, dim=0, output_size=len(batch.positions))
