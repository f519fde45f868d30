"""Rotary positions: the angles by which queries and keys are turned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride.kernels.checks import expect
from blockstride.models.batch import StepBatch

Angles = tuple[Float[Tensor, "num_tokens half"], Float[Tensor, "num_tokens half"]]


class Rotary:
    """Angles that grow with the position, more slowly from one pair of elements to the next.

    Args:
        size: Elements of a head that turn; they do in pairs.
        theta: Base of the geometric row of frequencies.
        device: Where the model runs.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 3.4.
    """

    def __init__(self, size: int, theta: float, device: torch.device) -> None:
        expect(size > 0 and size % 2 == 0, "rotary size", "a positive even number", size)
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
        self.frequencies: Float[Tensor, " half"] = 1.0 / theta**powers

    @classmethod
    def from_config(cls, values: Mapping[str, Any], head_size: int, device: torch.device) -> Rotary:
        """As a Hugging Face config describes it, in either of the two places that it uses.

        Raises:
            ValueError: A kind of scaling that is not supported, or numbers that can't be.
        """
        scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        expect(kind == "default", "rope_type", "'default'", repr(kind))
        theta = scaling.get("rope_theta", values.get("rope_theta", 10000.0))
        factor = scaling.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
        for name, value in (("rope_theta", theta), ("partial_rotary_factor", factor)):
            fits = isinstance(value, int | float) and value > 0
            expect(fits, name, "a positive number", repr(value))
        return cls(int(head_size * factor), float(theta), device)

    def angles(self, batch: StepBatch) -> Angles:
        """Cosine and sine of each token's angles; computed once a step for all layers."""
        if self not in batch.angles:
            turns = batch.positions[:, None].float() * self.frequencies
            batch.angles[self] = (turns.cos(), turns.sin())
        return batch.angles[self]
