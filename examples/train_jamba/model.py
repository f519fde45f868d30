"""A trainable hybrid whose parameters have the names and shapes of transformers' Jamba."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from train_jamba.config import VOCAB_SIZE, HybridConfig
from train_jamba.experts import MixtureOfExperts
from train_jamba.mamba import MambaMixer


class Attention(nn.Module):
    """Causal attention with grouped queries; it has no positions, the Mamba layers carry them."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        kv_size = config.num_key_value_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "batch num_tokens hidden_size"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """Mix every token with the tokens before it."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Gated feed-forward part of a layer."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "batch num_tokens hidden_size"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """`down(silu(gate(hidden)) * up(hidden))`."""
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """Two residual branches, each after an RMS norm: a token mixer and a feed-forward part."""

    def __init__(self, config: HybridConfig, index: int) -> None:
        super().__init__()
        is_attention = config.is_attention(index)
        self.mixer_name = "self_attn" if is_attention else "mamba"
        self.add_module(self.mixer_name, Attention(config) if is_attention else MambaMixer(config))
        self.feed_forward = MixtureOfExperts(config) if config.has_experts(index) else MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_ff_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Float[Tensor, "batch num_tokens hidden_size"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """Add both branches."""
        mixer = self.get_submodule(self.mixer_name)
        hidden = hidden + mixer(self.input_layernorm(hidden))
        return hidden + self.feed_forward(self.pre_ff_layernorm(hidden))


class Backbone(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, index) for index in range(config.num_hidden_layers)
        )
        self.final_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, tokens: Int[Tensor, "batch num_tokens"]
    ) -> Float[Tensor, "batch num_tokens hidden_size"]:
        """Hidden states that the head reads."""
        hidden = self.embed_tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.final_layernorm(hidden)


class Hybrid(nn.Module):
    """Language model over bytes whose head is its embedding."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)

    def forward(
        self, tokens: Int[Tensor, "batch num_tokens"]
    ) -> Float[Tensor, "batch num_tokens vocab_size"]:
        """Logits of the token after each token."""
        return functional.linear(self.model(tokens), self.model.embed_tokens.weight)


@torch.no_grad()
def initialise(model: Hybrid, seed: int) -> None:
    """Draw the initial weights, the same for the same seed.

    Matrices are normal with the deviation `fan_in ** -0.5`, smaller where they write into the
    residual stream. Step sizes start log-uniform between 0.001 and 0.1, as in the Mamba paper.
    Decay rates, skips and norms keep the values of their constructors.
    """
    generator = torch.Generator().manual_seed(seed)
    depth_scale = (2 * model.config.num_hidden_layers) ** -0.5
    for name, parameter in model.named_parameters():
        if name.endswith("dt_proj.bias"):
            parameter.uniform_(math.log(1e-3), math.log(1e-1), generator=generator)
            # the inverse of softplus
            parameter.copy_(torch.log(torch.expm1(parameter.exp())))
        elif name.endswith("conv1d.bias"):
            parameter.zero_()
        elif name.endswith("embed_tokens.weight"):
            parameter.normal_(std=0.05, generator=generator)
        elif parameter.dim() >= 2 and not name.endswith("A_log"):
            writes_residual = any(part in name for part in ("o_proj", "out_proj", "down_proj"))
            scale = depth_scale if writes_residual else 1.0
            parameter.normal_(std=scale * parameter.shape[-1] ** -0.5, generator=generator)
