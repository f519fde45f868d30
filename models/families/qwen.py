"""Qwen 2 and 3: attention in every layer, with a window in some if that is switched on."""

from __future__ import annotations

from typing import Any

from blockstride.models.families.experts import HasExperts, HasSharedExpert
from blockstride.models.families.keys import anything, count, is_whole, optional, switch
from blockstride.models.families.windows import HasWindow
from blockstride.models.modules import HeadNorm


class Qwen2(HasWindow):
    """Qwen 2 (Alibaba 2024), whose queries, keys and values have a bias.

    Attributes:
        use_sliding_window: Whether any layer has a window.
        max_window_layers: The first that has one.
    """

    vocab_size = count(151936)
    intermediate_size = count(22016)
    max_position_embeddings = count(32768)
    num_key_value_heads = optional(32)
    sliding_window = anything(4096)
    use_sliding_window = anything(False)
    max_window_layers = anything(28)

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window, in a file without a list."""
        return self.windows_are_on and layer >= self.first_window

    @property
    def windows_are_on(self) -> bool:
        """Whether any layer has a window."""
        return bool(self.use_sliding_window) and self.sliding_window is not None

    @property
    def first_window(self) -> int:
        """What a file says of the layer from which on they do, or up to which."""
        first = self.max_window_layers
        self.expect(is_whole(first), "max_window_layers", "a layer")
        return first

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {"has_bias": True, "has_out_bias": False}


class Qwen3(Qwen2):
    """Qwen 3 (Alibaba 2025), whose queries and keys are normed.

    Attributes:
        attention_bias: Whether the projections in and out of attention have a bias.
    """

    head_dim = optional(128)
    attention_bias = switch(False)

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {"has_bias": self.attention_bias, "norm": HeadNorm(self.rms_norm_eps)}


class Qwen2Moe(HasSharedExpert, Qwen2):
    """Qwen 2 with experts, and beside them an MLP that each token gates.

    Attributes:
        qkv_bias: Whether queries, keys and values have a bias.
    """

    hidden_size = count(2048)
    intermediate_size = count(5632)
    num_attention_heads = count(16)
    num_hidden_layers = count(24)
    num_key_value_heads = optional(16)
    num_experts = count(60)
    num_experts_per_tok = count(4)
    moe_intermediate_size = count(1408)
    qkv_bias = switch(True)
    shared_expert_intermediate_size = count(5632)

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window, in a file without a list: every other one of the first."""
        return self.windows_are_on and layer % 2 == 0 and layer < self.first_window

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {"has_bias": self.qkv_bias, "has_out_bias": False}


class Qwen3Moe(HasExperts, Qwen3):
    """Qwen 3 with experts, whose layers all have a window, or none of them."""

    hidden_size = count(2048)
    intermediate_size = count(6144)
    num_hidden_layers = count(24)
    num_key_value_heads = optional(4)
    head_dim = optional()
    num_experts = count(128, "num_local_experts", "num_experts")

    def has_window(self, layer: int) -> bool:
        """Whether windows are switched on."""
        return self.windows_are_on
