"""A hybrid model over paged caches: a stack of layers, each a mixer and feed-forward parts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from blockstride import kernels
from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.families import model_family
from blockstride.models.modules import FeedForward, LayerWeights, Mixer
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)

HEAD = "lm_head.weight"


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


class HybridModel:
    """A model whose mixers read and write paged caches in place.

    Its family says how its config is read, what its layers are made of, and how its norms are
    called.

    Args:
        checkpoint: Hugging Face checkpoint.
        dtype: Type of weights and activations.
        device: Where the model lives.
        types: What the caches hold; `dtype` and float32 recurrent states when None.
        parallel: The rank whose part of every weight this is; all of them when None.

    Attributes:
        config: The family, which has read the config.

    Raises:
        ValueError: Another architecture, weights that are missing, damaged or misshapen, or sizes
            that the ranks can't share.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        types: CacheTypes | None = None,
        parallel: TensorParallel | None = None,
    ) -> None:
        self.dtype, self.device = dtype, torch.device(device)
        self.parallel = parallel or TensorParallel()
        self.config = config = model_family(checkpoint.config)
        self.eos_token_ids = checkpoint.end_tokens()
        mixers = config.mixers(types or CacheTypes(kv=dtype, conv=dtype))
        weights = LayerWeights(checkpoint, "model.", dtype, self.device, self.parallel)
        self.embedding = self._embedding(weights)
        self.layers = [
            self._layer(i, mixer, replace(weights, prefix=f"model.layers.{i}."))
            for i, [mixer] in enumerate(layer.values() for layer in mixers)
        ]
        self.final_gain = weights.tensor(f"{config.final_norm}.weight", config.hidden_size)
        self.head = kernels.pack_weight(self._head(weights))
        self._warn_of_unread(checkpoint.expect_all_known())
        checkpoint.close()

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
            kind = type(self.config).__name__
            logger.warning(
                "%d tensors are no part of %s, such as %s", len(unread), kind, min(unread)
            )

    def _layer(self, index: int, mixer: Mixer, weights: LayerWeights) -> Layer:
        config, hidden = self.config, self.config.hidden_size
        input_norm = weights.tensor(f"{config.input_norm}.weight", hidden)
        mixer.load(weights)
        return Layer(
            input_norm,
            mixer,
            weights.tensor(f"{config.feed_forward_norm}.weight", hidden),
            config.feed_forward(index, weights),
            config.rms_norm_eps,
            config.residual_multiplier,
            self.parallel,
        )

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Layer name -> what it caches, on all ranks together."""
        return {f"layers.{i}": layer.mixer.cache_spec() for i, layer in enumerate(self.layers)}

    def bind(self, pools: Iterable[KVCachePool]) -> None:
        """Gives every layer its storage, and the index of its group among those of all pools.

        Raises:
            ValueError: A pool laid a layer out for another spec than it has.
        """
        groups = [(pool, placement.group) for pool in pools for placement in pool.layout.groups]
        for index, (pool, group) in enumerate(groups):
            for name in group.layer_names:
                mixer = self.layers[int(name.removeprefix("layers."))].mixer
                mixer.bind(pool, name, index)

    def forward(self, batch: StepBatch) -> Float[Tensor, "num_rows vocab_size"]:
        """Logits after the tokens that `batch.logits_rows` names; caches take in all new tokens."""
        hidden = embedding(batch.token_ids, self.embedding)
        if self.config.embedding_multiplier != 1:
            hidden *= self.config.embedding_multiplier
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = layer.forward(hidden, residual, batch)
        hidden, residual = hidden[batch.logits_rows], residual[batch.logits_rows]
        hidden, _ = kernels.rms_norm(
            hidden, self.final_gain, self.config.rms_norm_eps, residual=residual
        )
        logits = kernels.linear(hidden, self.head)
        if self.config.logits_scaling != 1:
            logits /= self.config.logits_scaling
        return self.parallel.join_columns(logits, self.config.vocab_size)
