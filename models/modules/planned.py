"""A mixer that can be planned and not run."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from blockstride.layouts import CacheSpec
from blockstride.models.batch import StepBatch
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights


class PlannedMixer(Mixer):
    """A kind of mixer of which only the cache is known, in families that only plan.

    Args:
        spec: What it caches, on all ranks together.
    """

    def __init__(self, spec: CacheSpec) -> None:
        self.spec = spec

    def load(self, weights: LayerWeights) -> None:
        """Raises: there is nothing that would run."""
        raise NotImplementedError(self.spec.kind)

    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"], batch: StepBatch
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """Raises: there is nothing that would run."""
        raise NotImplementedError(self.spec.kind)
