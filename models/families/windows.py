"""Attention over the last tokens, in families that have it in some layers or in all."""

from __future__ import annotations

from typing import Any

from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.keys import anything, is_whole
from blockstride.models.families.rope import FULL, SLIDING
from blockstride.models.families.transformer import Transformer
from blockstride.models.modules import Mixer


class HasWindow(Transformer):
    """A family whose layers may attend to the last tokens only.

    Attributes:
        listed_types: What each layer is, where a file lists them.
        sliding_window: Tokens that a layer with a window attends to.
    """

    layers = {FULL: ("attention",), SLIDING: ("window",)}
    listed_types = anything(None, "layer_types")
    sliding_window = anything()

    def layer_types(self) -> list[Any]:
        """As listed; else as the family has it."""
        if self.listed_types is not None:
            return self.listed("listed_types")
        layers = range(self.num_hidden_layers)
        return [SLIDING if self.has_window(layer) else FULL for layer in layers]

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window, in a file without a list: any, if there are windows."""
        return self.sliding_window is not None

    def window(self, types: CacheTypes) -> Mixer:
        """Attention over the last `sliding_window` tokens."""
        size, expected = self.sliding_window, "a positive integer in config.json"
        self.expect(is_whole(size) and size > 0, "sliding_window", expected)
        return self.attention_mixer(types, layer_type=SLIDING, window=size, **self.options())

    def numbers(self) -> dict[str, Any]:
        """The value of every key, of what bears on positions, and the types of layers."""
        return {**super().numbers(), "layer_types": self.layer_types()}
