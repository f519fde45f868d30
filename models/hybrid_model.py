"""Jamba over paged caches: a stack of layers, each a mixer and a feed-forward part."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from blockstride import kernels
from blockstride.layouts import CacheSpec, KVCachePool
from blockstride.models.batch import StepBatch
from blockstride.models.checkpoint import Checkpoint, Part
from blockstride.models.jamba.config import JambaConfig
from blockstride.models.jamba.feed_forward import ExpertMLP, GatedMLP
from blockstride.models.jamba.mixers import AttentionMixer, CacheDtypes, MambaMixer, Mixer
from blockstride.models.jamba.weights import LayerWeights
from blockstride.models.parallel import TensorParallel

logger = logging.getLogger(__name__)


class JambaLayer:
    """Norm, mixer, norm, feed-forward; both parts add to the residual stream."""

    def __init__(
        self,
        config: JambaConfig,
        index: int,
        weights: LayerWeights,
        dtypes: CacheDtypes,
        conv_order: str,
    ) -> None:
        self.mixer: Mixer = (
            AttentionMixer(config, weights, dtypes)
            if config.has_attention(index)
            else MambaMixer(config, weights, dtypes, conv_order)
        )
        feed_forward = ExpertMLP if config.has_experts(index) else GatedMLP
        self.feed_forward = feed_forward(config, weights)
        self.input_norm = weights.tensor("input_layernorm.weight", config.hidden_size)
        self.feed_forward_norm = weights.tensor("pre_ff_layernorm.weight", config.hidden_size)
        self.eps = config.rms_norm_eps

    def forward(self, hidden: Tensor, residual: Tensor, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """The layer's last addend and the residual stream before it, which the next norm joins."""
        hidden, residual = kernels.rms_norm(hidden, self.input_norm, self.eps, residual=residual)
        hidden = self.mixer.forward(hidden, batch)
        hidden, residual = kernels.rms_norm(
            hidden, self.feed_forward_norm, self.eps, residual=residual
        )
        return self.feed_forward.forward(hidden), residual


class JambaModel:
    """A Jamba model whose mixers read and write paged caches in place.

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
        self.config = config = JambaConfig.from_dict(checkpoint.config)
        self.dtype, self.device = dtype, torch.device(device)
        self.parallel = parallel = parallel or TensorParallel()
        dtypes = dtypes or CacheDtypes(kv=dtype, conv=dtype)
        weights = LayerWeights(checkpoint, "model.", dtype, self.device, parallel)
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embedding = weights.tensor("embed_tokens.weight", vocab, hidden)
        self.layers = [
            JambaLayer(
                config,
                i,
                replace(weights, prefix=f"model.layers.{i}."),
                dtypes,
                conv_order,
            )
            for i in range(config.num_hidden_layers)
        ]
        self.final_norm = weights.tensor("final_layernorm.weight", hidden)
        share = parallel.uneven_share(vocab)
        if config.tie_word_embeddings:
            self.head = kernels.pack_weight(self.embedding[slice(*share)])
        else:
            head = replace(weights, prefix="")
            self.head = head.matrix("lm_head.weight", vocab, hidden, Part(0, share))
        unread = checkpoint.unread - {"lm_head.weight"}
        if unread:
            logger.warning("%d tensors are not part of Jamba, such as %s", len(unread), min(unread))
        checkpoint.close()

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
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = layer.forward(hidden, residual, batch)
        hidden, residual = hidden[batch.logits_rows], residual[batch.logits_rows]
        hidden, _ = kernels.rms_norm(
            hidden, self.final_norm, self.config.rms_norm_eps, residual=residual
        )
        logits = kernels.linear(hidden, self.head)
        return self.parallel.join_columns(logits, self.config.vocab_size)
