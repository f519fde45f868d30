"""What every mixer and every feed-forward part can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride.layouts import CacheSpec
from blockstride.models.batch import StepBatch
from blockstride.models.parallel import TensorParallel


@dataclass(frozen=True)
class CacheDtypes:
    """What the caches of a model hold.

    Attributes:
        kv: Keys and values.
        conv: Convolution states.
        ssm: Recurrent states.
    """

    kv: torch.dtype
    conv: torch.dtype
    ssm: torch.dtype = torch.float32


class Mixer(ABC):
    """A layer's way of letting tokens see earlier ones, with a cache between steps.

    Ranks share its heads or channels; what one returns is an addend of the whole.
    """

    group: int = -1
    """Index of the layer's cache group among the tables of a batch; set when it is bound."""

    spec: CacheSpec
    """What the layer caches, on all ranks together."""

    parallel: TensorParallel
    """The rank."""

    cache: Any
    """Typed views of its part of that; set when it is bound."""

    def cache_spec(self) -> CacheSpec:
        """What the layer caches, on all ranks together."""
        return self.spec

    def bind_kv_cache(self, raw: Tensor) -> None:
        """Takes the layer's raw storage, as its pool made it, and keeps typed views of it."""
        shard = self.spec.tp_shard(self.parallel.rank, self.parallel.size)
        self.cache = shard.bind_kv_cache(raw)

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
        self, hidden: Float[Tensor, "num_tokens hidden_size"]
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """What becomes of each token."""
