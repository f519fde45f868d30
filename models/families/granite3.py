"""Granite 3: attention with rotary positions and an MLP, all with multipliers."""

from __future__ import annotations

from typing import Any

from blockstride.models.families.keys import number
from blockstride.models.families.llama import Llama


class Granite(Llama):
    """Granite 3 (IBM 2024).

    Attributes:
        attention_multiplier: Of attention scores.
    """

    attention_multiplier = number(1.0)
    embedding_multiplier = number(1.0)
    residual_multiplier = number(1.0)
    logits_scaling = number(1.0)

    def options(self) -> dict[str, Any]:
        """What attention has in all layers."""
        return {**super().options(), "scale": self.attention_multiplier}
