"""What every mixer and every feed-forward part can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor

from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.batch import StepBatch
from blockstride.models.modules.weights import LayerWeights
from blockstride.models.parallel import TensorParallel


class Mixer(ABC):
    """A layer's way of letting tokens see earlier ones, with a cache between steps.

    It is made of sizes alone, which is enough to plan its cache; weights are loaded and a pool is
    bound afterwards. Ranks share its heads or channels; what one returns is an addend of the whole.
    """

    group: int = -1
    """Index of the layer's cache group among the tables of a batch; set when it is bound."""

    spec: CacheSpec
    """What the layer caches, on all ranks together."""

    parallel: TensorParallel
    """The rank whose weights are loaded."""

    cache: Any
    """Typed views of its part of that; set when it is bound."""

    def cache_spec(self) -> CacheSpec:
        """What the layer caches, on all ranks together."""
        return self.spec

    def bind(self, pool: KVCachePool, layer_name: str, group: int) -> None:
        """Keeps typed views of the rank's part of the cache.

        Args:
            pool: Where it lies.
            layer_name: What the pool calls the layer.
            group: Index of its group among the tables of a batch.

        Raises:
            ValueError: The pool laid the layer out for another spec.
        """
        self.group = group
        spec = self.cache_spec()
        # a pool of one rank is laid out for the whole model's specs as they are
        if self.parallel.size > 1:
            spec = spec.tp_shard(self.parallel.rank, self.parallel.size)
        self.cache = pool.bind(layer_name, spec)

    @abstractmethod
    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's part of the mixer's tensors, whose names follow the given prefix.

        Raises:
            ValueError: One is missing, damaged or misshapen, or the ranks can't share it.
        """

    @abstractmethod
    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"], batch: StepBatch
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """Mixes the new tokens with those before them, and caches what later ones will need."""


class FeedForward(ABC):
    """A layer's part that sees every token by itself.

    Ranks share its inner width; what one returns is an addend of the whole.
    """

    @abstractmethod
    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"], batch: StepBatch
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """What becomes of each token; nothing here asks what step it belongs to."""
