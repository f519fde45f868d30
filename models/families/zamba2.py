"""Zamba2: Mamba-2 in all layers, and in some a block of attention before it that layers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any

from blockstride import kernels
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, constant, count, number, optional, switch
from blockstride.models.families.mamba2_hybrid import RunsMamba2
from blockstride.models.families.roles import MAMBA2
from blockstride.models.families.rope import HasRope
from blockstride.models.modules import (
    BlockSizes,
    Branch,
    LayerWeights,
    Mamba2Mixer,
    Mixer,
    SharedAttention,
    SharedBlock,
    SharedBlockLayer,
)

LAYERS = ["hybrid" if letter == "H" else "mamba" for letter in f"M{'MMMMMH' * 7}MMMMHMMMHMM"]
GATES = {"gelu": None, "gelu_pytorch_tanh": kernels.GELU_TANH, "silu": kernels.SILU}


class Zamba2(HasRope, RunsMamba2):
    """Zamba2 (Zyphra 2024), whose attention is twice as wide as the model.

    Attributes:
        block_types: What each layer is.
        attention_hidden_size: Width of what attention sees; only twice the hidden size exists.
        num_mem_blocks: Shared blocks, which layers that have one take in turn.
        adapter_rank: Width of adapters in between.
        use_shared_attention_adapter: Whether attention has adapters, as the MLP always does.
        use_mem_rope: Whether there are positions.
        use_long_context: Whether sequences may be longer than the file says.
        time_step_min: Lowest step of the recurrence.
    """

    layers = {**MAMBA2, "hybrid": ("attention", "mamba2")}
    activations = tuple(GATES)
    attention_kind = SharedAttention
    keeps_embeddings = True
    final_norm = "final_layernorm"
    block_types = anything(None, "layer_types", "layers_block_type")
    hidden_size = count(2560)
    intermediate_size = optional()
    num_hidden_layers = count(54)
    max_position_embeddings = count(4096)
    rms_norm_eps = number(1e-5)
    tie_word_embeddings = switch(True)
    hidden_act = anything("gelu")
    head_dim = optional(None, "head_dim", "attention_head_dim")
    attention_hidden_size = optional()
    d_state = count(64, "mamba_d_state")
    ssm_heads = count(8, "n_mamba_heads")
    ssm_head_dim = optional(None, "mamba_headdim")
    groups = count(1, "mamba_ngroups")
    mamba_conv_bias = constant(True)
    mamba_proj_bias = switch(False, "add_bias_linear")
    time_step_limit = constant((0.0, inf))
    time_step_min = number(1e-3)
    num_mem_blocks = count(1)
    adapter_rank = count(128)
    use_shared_attention_adapter = switch(False)
    use_mem_rope = switch(False)
    use_long_context = switch(False)

    def __init__(self, values: Mapping[str, Any]) -> None:
        longer = {"max_position_embeddings": 16384} if values.get("use_long_context") else {}
        super().__init__({**values, **longer})

    def layer_types(self) -> list[Any]:
        """As listed; else as in Zamba2-2.7B."""
        return LAYERS if self.block_types is None else self.listed("block_types")

    @property
    def has_rope(self) -> bool:
        """Whether there are positions at all."""
        return self.use_mem_rope

    @property
    def attention_width(self) -> int:
        """Elements of all query heads, where `head_dim` is left open."""
        return self.attention_hidden_size or 2 * self.hidden_size

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention over tokens beside their embeddings."""
        scale = (self.head_size / 2) ** -0.5
        return self.attention_mixer(types, scale=scale, input_size=2 * self.hidden_size)

    def mamba2(self, types: CacheTypes) -> Mixer:
        """Mamba-2, whose steps have a lower limit."""
        return self.mamba2_mixer(types, eps=1e-5, step_limit=(self.time_step_min, inf))

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        twice = 2 * self.hidden_size
        self.expect(self.attention_width == twice, "attention_hidden_size", twice)

    @cached_property
    def hybrid_layers(self) -> list[int]:
        """The layers with a shared block."""
        return [i for i, word in enumerate(self.layer_types()) if word == "hybrid"]

    @cached_property
    def blocks(self) -> dict[int, SharedBlock]:
        """Number of a shared block -> its weights, once its first layer is loaded."""
        return {}

    def branches(
        self, layer: int, mixers: Mapping[str, Mixer], weights: LayerWeights
    ) -> Sequence[Branch]:
        """Mamba-2, in some layers with a shared block before it."""
        if layer not in self.hybrid_layers:
            return super().branches(layer, mixers, weights)
        index = self.hybrid_layers.index(layer)
        attention, mamba = mixers["attention"], mixers["mamba2"]
        assert isinstance(attention, SharedAttention)
        assert isinstance(mamba, Mamba2Mixer)
        block = self._block(index, attention, weights.under("shared_transformer"))
        part = SharedBlockLayer(block, attention, mamba, weights, index)
        return [self.branch([part], weights, None)]

    def _block(self, index: int, attention: SharedAttention, weights: LayerWeights) -> SharedBlock:
        """The block that a layer shares; its own, where a file has another for it."""
        number = index % self.num_mem_blocks
        shared = self.blocks.get(number)
        if shared and weights.checkpoint.is_copy(weights.prefix, shared.weights.prefix):
            return shared
        own = SharedBlock(weights, attention, self._sizes())
        return self.blocks.setdefault(number, own) if shared is None else own

    def _sizes(self) -> BlockSizes:
        return BlockSizes(
            self.hidden_size,
            self.intermediate_size or 4 * self.hidden_size,
            self.adapter_rank,
            has_bias=self.mamba_proj_bias,
            has_attention_adapters=self.use_shared_attention_adapter,
            gate=GATES[self.hidden_act],
            eps=self.rms_norm_eps,
        )
