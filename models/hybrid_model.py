"""A hybrid model over paged caches: a stack of layers, each a mixer and feed-forward parts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from blockstride import kernels
from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.batch import StepBatch
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.config_values import end_tokens
from blockstride.models.modules import CacheDtypes, FeedForward, LayerWeights, Mixer
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)

HEAD = "lm_head.weight"


@runtime_checkable
class ModelConfig(Protocol):
    """What every model's config tells."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102
    @property
    def hidden_size(self) -> int: ...  # noqa: D102
    @property
    def num_hidden_layers(self) -> int: ...  # noqa: D102
    @property
    def num_attention_heads(self) -> int: ...  # noqa: D102
    @property
    def max_position_embeddings(self) -> int: ...  # noqa: D102
    @property
    def rms_norm_eps(self) -> float: ...  # noqa: D102
    @property
    def tie_word_embeddings(self) -> bool: ...  # noqa: D102
    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any: ...  # noqa: D102
    def has_attention(self, layer: int) -> bool: ...  # noqa: D102


ConfigType = TypeVar("ConfigType", bound=ModelConfig)


@dataclass
class Layer:
    """Norm, mixer, norm, feed-forward; what either gives is added to the residual stream.

    Attributes:
        input_norm: Gain of the norm before the mixer.
        mixer: How tokens see earlier ones.
        feed_forward_norm: Gain of the norm before the feed-forward parts.
        feed_forward: Parts whose results are added up.
        eps: Added to the mean square in both norms.
        multiplier: Of what is added to the residual stream.
        parallel: The rank.
    """

    input_norm: Tensor
    mixer: Mixer
    feed_forward_norm: Tensor
    feed_forward: Sequence[FeedForward]
    eps: float
    multiplier: float
    parallel: TensorParallel

    def forward(self, hidden: Tensor, residual: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """The layer's last addend and the residual stream before it, which the next norm joins."""
        hidden, residual = kernels.rms_norm(hidden, self.input_norm, self.eps, residual=residual)
        hidden = self._addend(self.mixer.forward(hidden, batch))
        hidden, residual = kernels.rms_norm(
            hidden, self.feed_forward_norm, self.eps, residual=residual
        )
        first, *others = self.feed_forward
        total = first.forward(hidden)
        for part in others:
            total += part.forward(hidden)
        return self._addend(total), residual

    def _addend(self, partial: Tensor) -> Tensor:
        total = self.parallel.all_reduce(partial)
        return total if self.multiplier == 1 else total.mul_(self.multiplier)


class HybridModel(ABC, Generic[ConfigType]):
    """A model whose mixers read and write paged caches in place.

    A family says how its config is read, what its layers are made of, and how its norms are called.

    Args:
        checkpoint: Hugging Face checkpoint.
        dtype: Type of weights and activations.
        device: Where the model lives.
        dtypes: What the caches hold; `dtype` and float32 recurrent states when None.
        conv_order: Memory order of convolution states, `"DS"` or `"SD"`.
        parallel: The rank whose part of every weight this is; all of them when None.

    Raises:
        ValueError: Another architecture, weights that are missing, damaged or misshapen, or sizes
            that the ranks can't share.
    """

    config_type: type[ConfigType]
    config: ConfigType
    input_norm = "input_layernorm"
    feed_forward_norm: str
    final_norm: str
    embedding_multiplier = 1.0
    residual_multiplier = 1.0
    logits_divisor = 1.0

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        dtypes: CacheDtypes | None = None,
        conv_order: str = "DS",
        parallel: TensorParallel | None = None,
    ) -> None:
        self.dtype, self.device = dtype, torch.device(device)
        self.dtypes = dtypes or CacheDtypes(kv=dtype, conv=dtype)
        self.conv_order = conv_order
        self.parallel = parallel or TensorParallel()
        self.config = config = self.read_config(checkpoint.config)
        self.eos_token_ids = end_tokens(checkpoint.config, checkpoint.generation)
        self.configure(config)
        hidden = config.hidden_size
        weights = LayerWeights(checkpoint, "model.", dtype, self.device, self.parallel)
        self.embedding = self._embedding(weights)
        self.layers = [
            self._layer(i, replace(weights, prefix=f"model.layers.{i}."))
            for i in range(config.num_hidden_layers)
        ]
        self.final_gain = weights.tensor(f"{self.final_norm}.weight", hidden)
        self.head = kernels.pack_weight(self._head(weights))
        self._warn_of_unread(checkpoint.expect_all_known())
        checkpoint.close()

    @classmethod
    def read_config(cls, values: Mapping[str, Any]) -> ConfigType:
        """The config in a parsed config.json.

        Raises:
            ValueError: Another architecture, or a value that can't be.
        """
        return cls.config_type.from_dict(values)

    def configure(self, config: ConfigType) -> None:
        """Sets what follows from the config, before weights are read."""

    def _embedding(self, weights: LayerWeights) -> Tensor:
        """The embedding; a file whose head is the same may have that alone."""
        config, name = self.config, "embed_tokens.weight"
        is_there = f"{weights.prefix}{name}" in weights.checkpoint
        if config.tie_word_embeddings and not is_there and HEAD in weights.checkpoint:
            weights, name = replace(weights, prefix=""), HEAD
        return weights.tensor(name, config.vocab_size, config.hidden_size)

    def _head(self, weights: LayerWeights) -> Tensor:
        """A rank's rows of the head: those of the embedding, unless a file has others."""
        config = self.config
        share = self.parallel.uneven_share(config.vocab_size)
        tied = self.embedding[slice(*share)]
        if config.tie_word_embeddings and HEAD not in weights.checkpoint:
            return tied
        own = replace(weights, prefix="")
        head = own.tensor(HEAD, config.vocab_size, config.hidden_size, part=Part(0, share))
        # an outline has no values that could differ
        is_copy = config.tie_word_embeddings and (head.is_meta or torch.equal(head, tied))
        return tied if is_copy else head

    def _warn_of_unread(self, names: Iterable[str]) -> None:
        # older files keep the frequencies of rotary positions, which follow from the config
        unread = [name for name in names if not name.endswith("rotary_emb.inv_freq")]
        if unread:
            kind = type(self).__name__
            logger.warning(
                "%d tensors are no part of %s, such as %s", len(unread), kind, min(unread)
            )

    @abstractmethod
    def make_mixer(self, layer: int, weights: LayerWeights) -> Mixer:
        """The mixer of a layer."""

    @abstractmethod
    def make_feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """The feed-forward parts of a layer, one or more."""

    def _layer(self, index: int, weights: LayerWeights) -> Layer:
        hidden = self.config.hidden_size
        return Layer(
            weights.tensor(f"{self.input_norm}.weight", hidden),
            self.make_mixer(index, weights),
            weights.tensor(f"{self.feed_forward_norm}.weight", hidden),
            self.make_feed_forward(index, weights),
            self.config.rms_norm_eps,
            self.residual_multiplier,
            self.parallel,
        )

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Layer name -> what it caches, on all ranks together."""
        return {f"layers.{i}": layer.mixer.cache_spec() for i, layer in enumerate(self.layers)}

    def bind(self, pools: Iterable[KVCachePool]) -> None:
        """Gives every layer its storage, and the index of its group among those of all pools."""
        group = 0
        for pool in pools:
            for placement in pool.layout.groups:
                for name in placement.group.layer_names:
                    mixer = self.layers[int(name.removeprefix("layers."))].mixer
                    mixer.group = group
                    mixer.bind_kv_cache(pool.raw(name))
                group += 1

    def forward(self, batch: StepBatch) -> Float[Tensor, "num_rows vocab_size"]:
        """Logits after the tokens that `batch.logits_rows` names; caches take in all new tokens."""
        hidden = embedding(batch.token_ids, self.embedding)
        if self.embedding_multiplier != 1:
            hidden *= self.embedding_multiplier
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = layer.forward(hidden, residual, batch)
        hidden, residual = hidden[batch.logits_rows], residual[batch.logits_rows]
        hidden, _ = kernels.rms_norm(
            hidden, self.final_gain, self.config.rms_norm_eps, residual=residual
        )
        logits = kernels.linear(hidden, self.head)
        if self.logits_divisor != 1:
            logits /= self.logits_divisor
        return self.parallel.join_columns(logits, self.config.vocab_size)
