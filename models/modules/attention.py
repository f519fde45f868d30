"""Grouped-query attention over a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import full_attention
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.rotary import Rotary
from blockstride.models.modules.weights import LayerWeights


class AttentionMixer(Mixer):
    """Grouped-query attention, with rotary positions or, as in Jamba, without any.

    Ranks share the heads.

    Args:
        hidden_size: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: KV heads; ranks share one where there are too few.
        head_size: Elements of a head.
        types: What the cache holds.
        scale: What scores are multiplied by; `head_size ** -0.5` when None.
        rotary: Positions; None for none.
        has_bias: Whether the projections have one.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        types: CacheTypes,
        *,
        scale: float | None = None,
        rotary: Rotary | None = None,
        has_bias: bool = False,
    ) -> None:
        self.hidden_size, self.num_heads, self.num_kv_heads = hidden_size, num_heads, num_kv_heads
        self.head_size, self.rotary, self.has_bias = head_size, rotary, has_bias
        self.scale = head_size**-0.5 if scale is None else scale
        self.spec = full_attention(num_kv_heads, head_size, types.kv)

    def load(self, weights: LayerWeights) -> None:
        """Joins q, k and v into one projection."""
        hidden_size, head_size = self.hidden_size, self.head_size
        total, total_kv = self.num_heads * head_size, self.num_kv_heads * head_size
        self.parallel = tp = weights.parallel
        q = tp.share("num_attention_heads", total, unit=head_size)
        kv = tp.share("num_key_value_heads", total_kv, unit=head_size, is_replicated=True)
        rows = {
            "q": (total, Part(0, q)),
            "k": (total_kv, Part(0, kv)),
            "v": (total_kv, Part(0, kv)),
        }
        self.qkv = kernels.pack_weight(
            torch.cat(
                [
                    weights.tensor(f"self_attn.{name}_proj.weight", size, hidden_size, part=part)
                    for name, (size, part) in rows.items()
                ]
            )
        )
        self.out = weights.matrix("self_attn.o_proj.weight", hidden_size, total, Part(1, q))
        self.qkv_bias = self.out_bias = None
        if self.has_bias:
            self.qkv_bias = torch.cat(
                [
                    weights.tensor(f"self_attn.{name}_proj.bias", size, part=part)
                    for name, (size, part) in rows.items()
                ]
            )
            self.out_bias = weights.addend("self_attn.o_proj.bias", hidden_size)
        self.sizes = [q.size // head_size, kv.size // head_size, kv.size // head_size]
        if self.rotary is not None:
            self.rotary.to(weights.device)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Writes keys and values of the new tokens, then attends to all up to each."""
        qkv = kernels.linear(hidden, self.qkv, self.qkv_bias)
        query, key, value = qkv.view(hidden.shape[0], -1, self.head_size).split(self.sizes, dim=1)
        table, cache = batch.tables[self.group], self.cache
        assert table.slot_mapping is not None, "an attention group has slots"
        angles = None if self.rotary is None else self.rotary.angles(batch)
        kernels.kv_cache_update(
            key,
            value,
            cache.key_cache,
            cache.value_cache,
            table.slot_mapping,
            rotary=angles,
            query=None if angles is None else query,
        )
        call = (
            query,
            cache.key_cache,
            cache.value_cache,
            table.block_table,
            batch.seq_lens,
            batch.query_start_loc,
        )
        if self.group not in batch.schedules:
            schedule = kernels.attention_schedule(*call, max_query_len=batch.max_query_len)
            batch.schedules[self.group] = schedule
        schedule = batch.schedules[self.group]
        out = kernels.paged_attention(*call, scale=self.scale, schedule=schedule)
        return kernels.linear(out.flatten(1), self.out, self.out_bias)
