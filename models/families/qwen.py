"""Qwen 2 and 3: attention in every layer, with a window from one layer on if it is switched on."""

from __future__ import annotations

from blockstride.models.families.keys import anything, count, optional
from blockstride.models.families.windows import HasWindow


class Qwen2(HasWindow):
    """Qwen 2 (Alibaba 2024).

    Attributes:
        use_sliding_window: Whether any layer has a window.
        max_window_layers: The first that has one.
    """

    num_key_value_heads = optional(32)
    sliding_window = optional(4096)
    use_sliding_window = anything(False)
    max_window_layers = anything(28)

    def has_window(self) -> bool:
        """Whether any layer has a window, in a file without a list."""
        return bool(self.use_sliding_window) and super().has_window()

    def first_window(self) -> int:
        """The first layer with a window, in a file without a list."""
        first = self.max_window_layers
        self.expect(isinstance(first, int), "max_window_layers", "a layer")
        return first


class Qwen2Moe(Qwen2):
    """Qwen 2 with experts."""

    hidden_size = count(2048)
    num_attention_heads = count(16)
    num_hidden_layers = count(24)
    num_key_value_heads = optional(16)


class Qwen3(Qwen2):
    """Qwen 3 (Alibaba 2025)."""

    head_dim = optional(128)


class Qwen3Moe(Qwen2):
    """Qwen 3 with experts."""

    hidden_size = count(2048)
    num_hidden_layers = count(24)
    num_key_value_heads = optional(4)
