"""A hybrid model over paged caches: a stack of branches of mixers and feed-forward parts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float, Int32
from torch import Tensor
from torch.nn.functional import embedding

from blockstride import kernels
from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.batch import StepBatch
from blockstride.models.block_copies import copy_blocks
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.families import model_family
from blockstride.models.families.family import named
from blockstride.models.language_part import WHOLE, head_of, prefix_of
from blockstride.models.modules import Branch, LayerWeights
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)


class HybridModel:
    """A model whose mixers read and write paged caches in place.

    Its family says how its config is read, what its layers are made of, and how its tensors are
    called.

    Args:
        checkpoint: Hugging Face checkpoint.
        dtype: Type of weights and activations.
        device: Where the model lives.
        types: What the caches hold; `dtype` and float32 recurrent states when None.
        parallel: The rank whose part of every weight this is; all of them when None.

    Attributes:
        config: The family, which has read the config.
        mixers: All that have a cache, by the names that pools know them by.
        branches: What adds to the residual stream, in order.

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
        self.mixers = named(mixers)
        names, embeddings = set(checkpoint), _several(config.embedding)
        prefix = prefix_of(names, _several(config.prefix), [f"{e}.weight" for e in embeddings])
        self.head_name = head_of(names, prefix)
        weights = LayerWeights(checkpoint, prefix, dtype, self.device, self.parallel)
        self.embedding = self._embedding(weights)
        self.branches = [
            branch
            for i, of_layer in enumerate(mixers)
            for branch in config.branches(i, of_layer, weights.under(f"layers.{i}"))
        ]
        self.final_gain = config.gain(weights, config.final_norm)
        self.head = kernels.pack_weight(self._head(weights))
        self._tell_unread(checkpoint.expect_all_known(), prefix)
        checkpoint.close()

    def _embedding(self, weights: LayerWeights) -> Tensor:
        """The embedding; a file whose head is the same may have that alone."""
        config, names = self.config, _several(self.config.embedding)
        name = weights.either(*(f"{name}.weight" for name in names))
        is_there = f"{weights.prefix}{name}" in weights.checkpoint
        if config.tie_word_embeddings and not is_there and self.head_name in weights.checkpoint:
            weights, name = replace(weights, prefix=""), self.head_name
        return weights.tensor(name, config.vocab_size, config.hidden_size)

    def _head(self, weights: LayerWeights) -> Tensor:
        """A rank's rows of the head: those of the embedding, unless a file has others."""
        config = self.config
        share = self.parallel.uneven_share(config.vocab_size)
        tied = self.embedding[slice(*share)]
        if config.tie_word_embeddings and self.head_name not in weights.checkpoint:
            return tied
        own, sizes = replace(weights, prefix=""), (config.vocab_size, config.hidden_size)
        head = own.tensor(self.head_name, *sizes, part=Part(0, share))
        # an outline has no values that could differ
        is_copy = config.tie_word_embeddings and (head.is_meta or torch.equal(head, tied))
        return tied if is_copy else head

    def _tell_unread(self, names: Iterable[str], prefix: str) -> None:
        # older files keep the frequencies of rotary positions, which follow from the config
        unread = {name for name in names if not name.endswith("rotary_emb.inv_freq")}
        if WHOLE in self.config.values:
            others = {name for name in unread if not name.startswith(prefix)}
            unread -= others
            logger.info("%d tensors of other parts of the model are not read", len(others))
        if unread:
            kind = type(self.config).__name__
            logger.warning(
                "%d tensors are no part of %s, such as %s", len(unread), kind, min(unread)
            )

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Layer name -> what it caches, on all ranks together."""
        return {name: mixer.cache_spec() for name, mixer in self.mixers.items()}

    def bind(self, pools: Iterable[KVCachePool]) -> None:
        """Gives every layer its storage, and the index of its group among those of all pools.

        Raises:
            ValueError: A pool laid a layer out for another spec than it has.
        """
        self._groups = [(pool, placed) for pool in pools for placed in pool.layout.groups]
        for index, (pool, placed) in enumerate(self._groups):
            for name in placed.group.layer_names:
                self.mixers[name].bind(pool, name, index)

    def forward(self, batch: StepBatch) -> Float[Tensor, "num_rows vocab_size"]:
        """Logits after the tokens that `batch.logits_rows` names; caches take in all new tokens."""
        self.copy_blocks(batch.before)
        logits = self.compute(batch)
        self.copy_blocks(batch.after)
        return logits

    def copy_blocks(self, copies: Int32[Tensor, "num_copies 3"] | None) -> None:
        """Copies blocks of the caches in all layers, as `StepBatch.before` has them."""
        if copies is not None:
            copy_blocks(self._groups, copies)

    def compute(self, batch: StepBatch) -> Float[Tensor, "num_rows vocab_size"]:
        """As `forward`, but for the blocks that are copied.

        Of a decode step this looks at no value, so that it can be recorded.
        """
        hidden = embedding(batch.token_ids, self.embedding)
        if self.config.embedding_multiplier != 1:
            hidden *= self.config.embedding_multiplier
        if self.config.keeps_embeddings:
            batch = replace(batch, embedded=hidden)
        residual = torch.zeros_like(
            hidden, dtype=torch.float32 if self.config.residual_in_fp32 else None
        )
        for branch in self.branches:
            hidden, residual = self._run(branch, hidden, residual, batch)
        hidden, residual = hidden[batch.logits_rows], residual[batch.logits_rows]
        hidden, _ = kernels.rms_norm(
            hidden, self.final_gain, self.config.rms_norm_eps, residual=residual
        )
        logits = kernels.linear(hidden, self.head)
        if (factor := self.config.logits_multiplier / self.config.logits_scaling) != 1:
            logits *= factor
        if (bound := self.config.logits_soft_cap) is not None:
            logits.div_(bound).tanh_().mul_(bound)
        return self.parallel.join_columns(logits, self.config.vocab_size)

    def _run(
        self, branch: Branch, hidden: Tensor, residual: Tensor, batch: StepBatch
    ) -> tuple[Tensor, Tensor]:
        """What a branch adds, and the residual stream that it is to be added to.

        Args:
            branch: Which one.
            hidden: What the one before it adds `[num_tokens, hidden_size]`.
            residual: The residual stream without that; it is changed in place.
            batch: The step.
        """
        eps, multiplier = self.config.rms_norm_eps, self.config.residual_multiplier
        if branch.norm is None:
            residual += hidden
            hidden = residual
        else:
            hidden, residual = kernels.rms_norm(hidden, branch.norm, eps, residual=residual)
        first, *others = branch.parts
        total = first.forward(hidden, batch)
        for part in others:
            total += part.forward(hidden, batch)
        total = self.parallel.all_reduce(total)
        if branch.post_norm is not None:
            total = kernels.rms_norm(total, branch.post_norm, eps, out=total)
        return (total if multiplier == 1 else total.mul_(multiplier)), residual


def _several(name: str | tuple[str, ...]) -> tuple[str, ...]:
    """Names of which a file has one, where there may be one alone."""
    return (name,) if isinstance(name, str) else name
