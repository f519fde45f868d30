"""The two token mixers of Jamba: each says what it caches, binds it, and mixes tokens with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from blockstride import kernels
from blockstride.layouts import CacheSpec, Interval, full_attention, mamba1
from blockstride.models.batch import StepBatch
from blockstride.models.checkpoint import Part
from blockstride.models.jamba.config import JambaConfig
from blockstride.models.jamba.weights import LayerWeights


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
    """A layer's way of letting tokens see earlier ones, with a cache between steps."""

    group: int = -1
    """Index of the layer's cache group among the tables of a batch; set when it is bound."""

    @abstractmethod
    def cache_spec(self) -> CacheSpec:
        """What the layer caches, on all ranks together."""

    @abstractmethod
    def bind_kv_cache(self, raw: Tensor) -> None:
        """Takes the layer's raw storage, as its pool made it, and keeps typed views of it."""

    @abstractmethod
    def forward(
        self, hidden: Float[Tensor, "num_tokens hidden_size"], batch: StepBatch
    ) -> Float[Tensor, "num_tokens hidden_size"]:
        """Mixes the new tokens with those before them, and caches what later ones will need."""


class AttentionMixer(Mixer):
    """Grouped-query attention without positions, as Jamba has it. Ranks share the heads.

    Args:
        config: The model.
        weights: Tensors of this layer; q, k and v are joined into one projection.
        dtypes: What the cache holds.
    """

    def __init__(self, config: JambaConfig, weights: LayerWeights, dtypes: CacheDtypes) -> None:
        hidden, size = config.hidden_size, config.head_size
        total, total_kv = config.num_attention_heads * size, config.num_key_value_heads * size
        self.parallel = tp = weights.parallel
        q = tp.share("num_attention_heads", total, unit=size)
        kv = tp.share("num_key_value_heads", total_kv, unit=size, is_replicated=True)
        parts = [
            weights.tensor("self_attn.q_proj.weight", total, hidden, part=Part(0, q)),
            weights.tensor("self_attn.k_proj.weight", total_kv, hidden, part=Part(0, kv)),
            weights.tensor("self_attn.v_proj.weight", total_kv, hidden, part=Part(0, kv)),
        ]
        self.qkv = kernels.pack_weight(torch.cat(parts))
        self.out = weights.matrix("self_attn.o_proj.weight", hidden, total, Part(1, q))
        self.heads, self.kv_heads, self.size = q.size // size, kv.size // size, size
        self.spec = full_attention(config.num_key_value_heads, size, dtypes.kv)

    def cache_spec(self) -> CacheSpec:
        """Keys and values of every token."""
        return self.spec

    def bind_kv_cache(self, raw: Tensor) -> None:
        """Keeps key and value views."""
        shard = self.spec.tp_shard(self.parallel.rank, self.parallel.size)
        self.cache = shard.bind_kv_cache(raw)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Writes keys and values of the new tokens, then attends to all up to each."""
        qkv = kernels.linear(hidden, self.qkv).view(hidden.shape[0], -1, self.size)
        query, key, value = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        table, cache = batch.tables[self.group], self.cache
        assert table.slot_mapping is not None, "an attention group has slots"
        kernels.kv_cache_update(key, value, cache.key_cache, cache.value_cache, table.slot_mapping)
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
        out = kernels.paged_attention(*call, scale=self.size**-0.5, schedule=schedule)
        return self.parallel.all_reduce(kernels.linear(out.flatten(1), self.out))


class MambaMixer(Mixer):
    """Mamba-1 with norms on dt, B and C, as Jamba has it. Ranks share the channels.

    Args:
        config: The model.
        weights: Tensors of this layer.
        dtypes: What the cache holds.
        conv_order: Memory order of the convolution state.
    """

    def __init__(
        self,
        config: JambaConfig,
        weights: LayerWeights,
        dtypes: CacheDtypes,
        conv_order: str = "DS",
    ) -> None:
        hidden, inner, state, rank = (
            config.hidden_size,
            config.d_inner,
            config.mamba_d_state,
            config.dt_rank,
        )
        width = config.mamba_d_conv
        self.parallel = tp = weights.parallel
        mine = tp.share("mamba_expand * hidden_size", inner)
        rows, columns = Part(0, mine), Part(1, mine)
        gate = Interval(inner + mine.start, inner + mine.stop)
        x_and_z = [
            weights.tensor("mamba.in_proj.weight", 2 * inner, hidden, part=Part(0, part))
            for part in (mine, gate)
        ]
        self.in_proj = kernels.pack_weight(torch.cat(x_and_z))
        self.out_proj = weights.matrix("mamba.out_proj.weight", hidden, inner, columns)
        self.in_bias = self.out_bias = self.conv_bias = None
        if config.mamba_proj_bias:
            bias = weights.tensor("mamba.in_proj.bias", 2 * inner)
            self.in_bias = torch.cat([bias[slice(*mine)], bias[slice(*gate)]])
            # added once, whatever the number of ranks
            bias = weights.tensor("mamba.out_proj.bias", hidden)
            self.out_bias = bias if tp.rank == 0 else None
        # taps outermost, so that a GPU loads those of neighbouring channels in wide words
        taps = weights.tensor("mamba.conv1d.weight", inner, 1, width, part=rows).squeeze(1)
        self.conv_weight = taps.T.contiguous().T
        if config.mamba_conv_bias:
            self.conv_bias = weights.tensor("mamba.conv1d.bias", inner, part=rows)
        self.x_proj = weights.matrix("mamba.x_proj.weight", rank + 2 * state, inner, columns)
        self.dt_proj = weights.matrix("mamba.dt_proj.weight", inner, rank, rows)
        self.norms = [
            weights.tensor("mamba.dt_layernorm.weight", rank),
            weights.tensor("mamba.b_layernorm.weight", state),
            weights.tensor("mamba.c_layernorm.weight", state),
        ]
        # the recurrence is float32 whatever the weights are
        wide = {"dtype": torch.float32, "part": rows}
        self.dt_bias = weights.tensor("mamba.dt_proj.bias", inner, **wide)
        self.A = -torch.exp(weights.tensor("mamba.A_log", inner, state, **wide))
        self.D = weights.tensor("mamba.D", inner, **wide)
        self.channels, self.sizes, self.eps = mine.size, [rank, state, state], config.rms_norm_eps
        self.spec = mamba1(
            inner,
            state,
            width,
            conv_dtype=dtypes.conv,
            ssm_dtype=dtypes.ssm,
            conv_order=conv_order,
        )

    def cache_spec(self) -> CacheSpec:
        """The last inputs of the convolution, and the recurrent state."""
        return self.spec

    def bind_kv_cache(self, raw: Tensor) -> None:
        """Keeps conv and ssm views."""
        shard = self.spec.tp_shard(self.parallel.rank, self.parallel.size)
        self.cache = shard.bind_kv_cache(raw)

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """Convolves, then runs the recurrence from the cached state, and leaves the last there."""
        indices = batch.tables[self.group].state_indices
        x, z = kernels.linear(hidden, self.in_proj, self.in_bias).split(self.channels, dim=1)
        x = self._convolve(x, indices, batch)
        parts = self.parallel.all_reduce(kernels.linear(x, self.x_proj)).split(self.sizes, dim=1)
        dt, B, C = (
            kernels.rms_norm(part, weight, self.eps)
            for part, weight in zip(parts, self.norms, strict=True)
        )
        ssm = (x, kernels.linear(dt, self.dt_proj), self.A, B, C, self.cache.ssm_state, indices)
        gates = {"D": self.D, "z": z, "dt_bias": self.dt_bias}
        if batch.is_decode:
            y = kernels.selective_state_update(*ssm, **gates)
        else:
            y = kernels.selective_scan(
                *ssm, batch.query_start_loc, batch.has_initial_state, **gates
            )
        return self.parallel.all_reduce(kernels.linear(y, self.out_proj, self.out_bias))

    def _convolve(self, x: Tensor, indices: Tensor, batch: StepBatch) -> Tensor:
        state, weight, bias = self.cache.conv_state, self.conv_weight, self.conv_bias
        if batch.is_decode:
            return kernels.causal_conv1d_update(x[:, None], weight, bias, state, indices)[:, 0]
        return kernels.causal_conv1d(
            x, weight, bias, state, indices, batch.query_start_loc, batch.has_initial_state
        )
