"""Multi-head latent attention over a paged cache of latents."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval, latent_attention
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.attention import attend
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.weights import LayerWeights

# of the norms of latents, whatever a file says of others
EPS = 1e-6


class LatentAttentionMixer(Mixer):
    """Attention whose keys and values all heads make of one latent row a token, without positions.

    What makes keys of a latent is applied to queries instead, and what makes values of it to what
    heads find, so that they attend to the cached row itself: one key head, whose values are the
    latent. Ranks share the heads; each has the whole row.

    Args:
        hidden_size: Width of the residual stream.
        num_heads: Heads.
        latent_size: Elements of a latent.
        shared_dim: Elements of a key that all heads have in common, cached beside the latent.
        own_dim: Elements of a key that are a head's own.
        value_dim: Elements of a value.
        types: What the cache holds.
        query_rank: Width that queries pass on their way; None for one projection.
        has_bias: Whether the projections to latents and out have a bias.

    Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
    Language Model", 2.1 and appendix C.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        latent_size: int,
        shared_dim: int,
        own_dim: int,
        value_dim: int,
        types: CacheTypes,
        *,
        query_rank: int | None = None,
        has_bias: bool = False,
    ) -> None:
        self.hidden_size, self.num_heads, self.latent_size = hidden_size, num_heads, latent_size
        self.shared_dim, self.own_dim, self.value_dim = shared_dim, own_dim, value_dim
        self.query_rank, self.has_bias = query_rank, has_bias
        self.scale = (own_dim + shared_dim) ** -0.5
        self.spec = latent_attention(latent_size, shared_dim, types.kv)

    def load(self, weights: LayerWeights) -> None:
        """Reads the rank's heads, and the projections to latents whole."""
        self.parallel = weights.parallel
        heads = self.parallel.share("num_attention_heads", self.num_heads)
        self._load_inward(weights, heads)
        rank, own, size = self.latent_size, self.own_dim, self.own_dim + self.value_dim
        rows = Part(0, Interval(heads.start * size, heads.stop * size))
        kv = weights.tensor("kv_b_proj.weight", self.num_heads * size, rank, part=rows)
        keys, values = kv.view(-1, size, rank).split([own, self.value_dim], dim=1)
        # as factors of bmm, head by head
        self.to_latent = keys.contiguous()
        self.of_latent = values.transpose(1, 2).contiguous()
        dim = self.value_dim
        columns = Part(1, Interval(heads.start * dim, heads.stop * dim))
        self.out = weights.matrix("o_proj.weight", self.hidden_size, self.num_heads * dim, columns)
        self.out_bias = weights.addend("o_proj.bias", self.hidden_size) if self.has_bias else None

    def _load_inward(self, weights: LayerWeights, heads: Interval) -> None:
        """Joins what tokens are projected by: to latents, and to queries or half way to them."""
        size, rank, hidden = self.own_dim + self.shared_dim, self.query_rank, self.hidden_size
        total, mine = self.num_heads * size, Interval(heads.start * size, heads.stop * size)
        row = self.latent_size + self.shared_dim
        self.latent_gain = weights.tensor("kv_a_layernorm.weight", self.latent_size)
        latent = weights.tensor("kv_a_proj_with_mqa.weight", row, hidden)
        self.in_bias = weights.tensor("kv_a_proj_with_mqa.bias", row) if self.has_bias else None
        if rank is None:
            query = weights.tensor("q_proj.weight", total, hidden, part=Part(0, mine))
        else:
            query = weights.tensor("q_a_proj.weight", rank, hidden)
            self.query_gain = weights.tensor("q_a_layernorm.weight", rank)
            self.query_proj = weights.matrix("q_b_proj.weight", total, rank, Part(0, mine))
        if self.in_bias is not None:
            # one projection to queries has none
            bias = (
                query.new_zeros(mine.size)
                if rank is None
                else weights.tensor("q_a_proj.bias", rank)
            )
            self.in_bias = torch.cat([bias, self.in_bias])
        self.in_proj = kernels.pack_weight(torch.cat([query, latent]))
        self.sizes = [len(query), row]

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Writes latents of the new tokens, then attends to all up to each."""
        projected = kernels.linear(hidden, self.in_proj, self.in_bias)
        query, row = projected.split(self.sizes, dim=1)
        latent = row[:, : self.latent_size]
        kernels.rms_norm(latent, self.latent_gain, EPS, out=latent)
        slots, cache = batch.tables[self.group].slot_mapping, self.cache
        assert slots is not None, "an attention group has slots"
        # values are a slice of keys, and are written as such
        new = (row[:, None], latent[:, None], cache.key_cache, cache.value_cache, slots)
        kernels.kv_cache_update(*new)
        found = attend(self, self._queries(query), batch, scale=self.scale)
        values = torch.bmm(found.transpose(0, 1), self.of_latent).transpose(0, 1)
        return kernels.linear(values.flatten(1), self.out, self.out_bias)

    def _queries(self, query: Tensor) -> Tensor:
        """Queries of cached rows `[num_tokens, heads, latent_size + shared_dim]`."""
        if self.query_rank is not None:
            query = kernels.rms_norm(query, self.query_gain, EPS)
            query = kernels.linear(query, self.query_proj)
        own, shared = query.unflatten(1, (-1, self.own_dim + self.shared_dim)).split(
            [self.own_dim, self.shared_dim], dim=2
        )
        latent = torch.bmm(own.transpose(0, 1), self.to_latent).transpose(0, 1)
        return torch.cat([latent, shared], dim=2)
