"""Attention over the last tokens, in families that have it in some layers or in all."""

from __future__ import annotations

from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, optional
from blockstride.models.families.roles import HasAttention
from blockstride.models.modules import Mixer


class HasWindow(HasAttention):
    """A family whose layers may attend to the last tokens only.

    Attributes:
        listed_types: What each layer is, where a file lists them.
        sliding_window: Tokens that a layer with a window attends to.
    """

    layers = {"full_attention": ("attention",), "sliding_attention": ("window",)}
    listed_types = anything(None, "layer_types")
    sliding_window = optional()

    def layer_types(self) -> list[Any]:
        """As listed; else a window in all layers that may have one, if there is any."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        first = self.first_window() if self.has_window() else self.num_hidden_layers
        layers = range(self.num_hidden_layers)
        return ["sliding_attention" if i >= first else "full_attention" for i in layers]

    def has_window(self) -> bool:
        """Whether any layer has a window, in a file without a list."""
        return self.sliding_window is not None

    def first_window(self) -> int:
        """The first layer with a window, in a file without a list."""
        return 0

    def window(self, types: CacheTypes) -> Mixer:
        """Attention over the last `sliding_window` tokens."""
        size, expected = self.sliding_window, "a positive integer in config.json"
        self.expect(size is not None, "sliding_window", expected)
        return self.attention_mixer(types, window=size)
