"""A block of attention and an MLP that layers share, and a layer that has it before a mixer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu

from blockstride import kernels
from blockstride.layouts import Interval
from blockstride.models.batch import StepBatch
from blockstride.models.checkpoint import Part
from blockstride.models.modules.adapters import Adapters
from blockstride.models.modules.mamba2 import Mamba2Mixer
from blockstride.models.modules.module import FeedForward
from blockstride.models.modules.shared_attention import SharedAttention
from blockstride.models.modules.weights import LayerWeights


@dataclass(frozen=True)
class BlockSizes:
    """What a shared block is made of.

    Attributes:
        hidden_size: Width of the residual stream; the block sees the embedding beside it.
        inner: Inner width of the MLP.
        adapter_rank: Width of adapters in between.
        has_bias: Whether the projections of the MLP have a bias.
        has_attention_adapters: Whether attention has adapters, as the MLP always does.
        gate: Activation of the MLP's gate; None for the exact GELU.
        eps: Added to the mean square in norms.
    """

    hidden_size: int
    inner: int
    adapter_rank: int
    has_bias: bool
    has_attention_adapters: bool
    gate: kernels.Gate | None
    eps: float


class SharedBlock:
    """The weights that layers share.

    Args:
        weights: Its tensors, those of all adapters included.
        attention: The attention of the first layer that has the block, which this loads.
        sizes: What it is made of.

    Raises:
        ValueError: A tensor is missing, damaged or misshapen.
    """

    def __init__(
        self, weights: LayerWeights, attention: SharedAttention, sizes: BlockSizes
    ) -> None:
        self.weights, self.attention, self.sizes = weights, attention, sizes
        attention.load(weights.under("self_attn"))
        hidden, inner, mlp = sizes.hidden_size, sizes.inner, weights.under("feed_forward")
        self.gain = weights.tensor("input_layernorm.weight", 2 * hidden)
        self.mlp_gain = weights.tensor("pre_ff_layernorm.weight", hidden)
        self.share = weights.parallel.share("intermediate_size", inner)
        self.halves = (self.share, Interval(inner + self.share.start, inner + self.share.stop))
        self.gate_up = mlp.rows("gate_up_proj.weight", self.halves, 2 * inner, hidden)
        self.down = mlp.matrix("down_proj.weight", hidden, inner, Part(1, self.share))
        self.gate_up_bias = self.down_bias = None
        if sizes.has_bias:
            bias = mlp.tensor("gate_up_proj.bias", 2 * inner)
            self.gate_up_bias = torch.cat([bias[slice(*half)] for half in self.halves])
            self.down_bias = mlp.addend("down_proj.bias", hidden)

    def mlp(self, hidden: Tensor, adapters: Adapters) -> Tensor:
        """This rank's addend of the MLP of each token."""
        inner = kernels.linear(hidden, self.gate_up, self.gate_up_bias)
        inner += adapters.forward(hidden)
        if self.sizes.gate is not None:
            inner = kernels.gate_and_mul(inner, self.sizes.gate)
        else:
            gate, up = inner.chunk(2, dim=1)
            inner = gelu(gate).mul_(up)
        return kernels.linear(inner, self.down, self.down_bias)


class SharedBlockLayer(FeedForward):
    """A shared block that sees tokens beside their embeddings, then a projection, then Mamba-2.

    Mamba-2 sees tokens with what the block makes of them, of which nothing else is left.

    Args:
        block: The block.
        attention: This layer's attention, which takes over the block's weights.
        mamba: Its mixer, which this loads.
        weights: Tensors of the layer.
        index: Which of the layers with a shared block it is.

    Raises:
        ValueError: A tensor is missing, damaged or misshapen.

    Source: Glorioso et al., "The Zamba2 Suite: Technical Report", 2.
    """

    def __init__(
        self,
        block: SharedBlock,
        attention: SharedAttention,
        mamba: Mamba2Mixer,
        weights: LayerWeights,
        index: int,
    ) -> None:
        self.block, self.attention, self.mamba = block, attention, mamba
        self.parallel, sizes = weights.parallel, block.sizes
        hidden, rank = sizes.hidden_size, sizes.adapter_rank
        if attention is not block.attention:
            attention.take_over(block.attention)
        if sizes.has_attention_adapters:
            attention.load_adapters(block.weights.under("self_attn"), index, rank)
        rows = {f"gate_up_proj_adapter_list.{index}": (2 * sizes.inner, block.halves)}
        self.adapters = Adapters(block.weights.under("feed_forward"), rows, hidden, rank)
        self.linear = weights.matrix("linear.weight", hidden, hidden)
        self.gain = weights.tensor("mamba_decoder.input_layernorm.weight", hidden)
        mamba.load(weights.under("mamba_decoder.mamba"))

    def forward(self, hidden: Tensor, batch: StepBatch) -> Tensor:
        """What the mixer makes of tokens and of what the block adds to them."""
        block, eps = self.block, self.block.sizes.eps
        assert batch.embedded is not None, "the model keeps embeddings for its layers"
        pair = torch.cat([hidden, batch.embedded], dim=1)
        pair = kernels.rms_norm(pair, block.gain, eps, out=pair)
        out = self.parallel.all_reduce(self.attention.forward(pair, batch))
        out = kernels.rms_norm(out, block.mlp_gain, eps)
        out = self.parallel.all_reduce(block.mlp(out, self.adapters))
        out = kernels.linear(out, self.linear).add_(hidden)
        return self.mamba.forward(kernels.rms_norm(out, self.gain, eps), batch)
