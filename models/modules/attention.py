"""Grouped-query attention over a paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import Interval, full_attention, sliding_window_attention
from blockstride.models.batch import StepBatch
from blockstride.models.cache_types import CacheTypes
from blockstride.models.checkpoint import Part
from blockstride.models.modules.head_norm import HeadNorm
from blockstride.models.modules.module import Mixer
from blockstride.models.modules.rotary import Rotary
from blockstride.models.modules.weights import LayerWeights
from blockstride.models.modules.width_norm import WidthNorm


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
        window: Tokens that a token sees, itself included; None for all before it.
        soft_cap: Scores are kept below it by a hyperbolic tangent; None for no such bound.
        has_bias: Whether the projections in have one.
        has_out_bias: Whether the projection out has one; as those in when None.
        has_sinks: Whether each head has a score that no token stands behind, and that takes part in
            the softmax.
        is_gated: Whether what a head gives is multiplied by the sigmoid of a gate, whose projection
            stands beside that of the head's query.
        norm: Of queries and keys, head by head or of all heads together; None for none.
        out_name: What tensors call the projection out.
        input_size: Width of what is projected in; `hidden_size` when None.

    Source: Qiu et al., "Gated Attention for Large Language Models", for the gate; Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks", for sinks.
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
        window: int | None = None,
        soft_cap: float | None = None,
        has_bias: bool = False,
        has_out_bias: bool | None = None,
        has_sinks: bool = False,
        is_gated: bool = False,
        norm: HeadNorm | WidthNorm | None = None,
        out_name: str = "o_proj",
        input_size: int | None = None,
    ) -> None:
        self.hidden_size, self.num_heads, self.num_kv_heads = hidden_size, num_heads, num_kv_heads
        self.input_size = hidden_size if input_size is None else input_size
        self.head_size, self.rotary, self.norm = head_size, rotary, norm
        self.has_bias, self.is_gated, self.has_sinks = has_bias, is_gated, has_sinks
        self.has_out_bias = has_bias if has_out_bias is None else has_out_bias
        self.window, self.soft_cap, self.out_name = window, soft_cap, out_name
        self.scale = head_size**-0.5 if scale is None else scale
        heads = (num_kv_heads, head_size, types.kv)
        self.spec = (
            full_attention(*heads)
            if window is None
            else sliding_window_attention(*heads, window=window)
        )

    def load(self, weights: LayerWeights) -> None:
        """Joins q, k and v into one projection."""
        hidden_size, head_size = self.hidden_size, self.head_size
        total, total_kv = self.num_heads * head_size, self.num_kv_heads * head_size
        self.parallel = tp = weights.parallel
        q = tp.share("num_attention_heads", total, unit=head_size)
        kv = tp.share("num_key_value_heads", total_kv, unit=head_size, is_replicated=True)
        # a gate lies behind the query of its head
        width = 2 if self.is_gated else 1
        q_and_gates = Interval(width * q.start, width * q.stop)
        rows = {
            "q": (width * total, Part(0, q_and_gates)),
            "k": (total_kv, Part(0, kv)),
            "v": (total_kv, Part(0, kv)),
        }
        self.qkv = kernels.pack_weight(
            torch.cat(
                [
                    weights.tensor(f"{name}_proj.weight", size, self.input_size, part=part)
                    for name, (size, part) in rows.items()
                ]
            )
        )
        self.out = weights.matrix(f"{self.out_name}.weight", hidden_size, total, Part(1, q))
        self.qkv_bias = self.out_bias = self.sinks = None
        if self.has_bias:
            self.qkv_bias = torch.cat(
                [
                    weights.tensor(f"{name}_proj.bias", size, part=part)
                    for name, (size, part) in rows.items()
                ]
            )
        if self.has_out_bias:
            self.out_bias = weights.addend(f"{self.out_name}.bias", hidden_size)
        if self.has_sinks:
            heads = Interval(q.start // head_size, q.stop // head_size)
            self.sinks = weights.tensor("sinks", self.num_heads, part=Part(0, heads))
        if self.norm is not None:
            self.norm.load(weights, head_size)
        self.sizes = [width * q.size // head_size, kv.size // head_size, kv.size // head_size]
        if self.rotary is not None:
            self.rotary.to(weights.device)

    def project(self, hidden: Tensor) -> Tensor:
        """Queries, keys and values of this rank, side by side."""
        return kernels.linear(hidden, self.qkv, self.qkv_bias)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Writes keys and values of the new tokens, then attends to all up to each."""
        qkv = self.project(hidden)
        query, key, value = qkv.view(hidden.shape[0], -1, self.head_size).split(self.sizes, dim=1)
        gate = None
        if self.is_gated:
            query, gate = query[:, ::2], query[:, 1::2]
        if self.norm is not None:
            self.norm.forward(query, key)
        self._cache_new_tokens(query, key, value, batch)
        how = {"scale": self.scale, "window": self.window, "soft_cap": self.soft_cap}
        out = attend(self, query, batch, **how, sinks=self.sinks)
        if gate is not None:
            out *= gate.sigmoid()
        return kernels.linear(out.flatten(1), self.out, self.out_bias)

    def _cache_new_tokens(
        self, query: Tensor, key: Tensor, value: Tensor, batch: StepBatch
    ) -> None:
        """Turns queries and keys with their positions, and writes keys and values."""
        slots, cache = batch.tables[self.group].slot_mapping, self.cache
        assert slots is not None, "an attention group has slots"
        angles = None if self.rotary is None else self.rotary.angles(batch)
        turned = None if angles is None else query
        new = (key, value, cache.key_cache, cache.value_cache, slots)
        kernels.kv_cache_update(*new, rotary=angles, query=turned)


def attend(mixer: Mixer, query: Tensor, batch: StepBatch, **how: Any) -> Tensor:
    """What each head finds in the cache of a mixer, by a plan that layers of a group share.

    Args:
        mixer: Whose cache.
        query: Queries of the new tokens `[num_tokens, heads, head_size]`.
        batch: The step.
        how: The rest as `kernels.paged_attention` has it by keyword.
    """
    call = (
        query,
        mixer.cache.key_cache,
        mixer.cache.value_cache,
        batch.tables[mixer.group].block_table,
        batch.seq_lens,
        batch.query_start_loc,
    )
    if mixer.group not in batch.schedules:
        batch.schedules[mixer.group] = kernels.attention_schedule(
            *call, window=how.get("window"), max_query_len=batch.max_query_len
        )
    return kernels.paged_attention(*call, schedule=batch.schedules[mixer.group], **how)
