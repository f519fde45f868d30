"""What families without recurrences share: attention with positions and an MLP in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from blockstride import kernels
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.rope import FULL, HasRope
from blockstride.models.modules import FeedForward, GatedMLP, LayerWeights, Mixer


class Transformer(HasRope):
    """Attention and an MLP in every layer, between them a norm each.

    Attributes:
        gate: Activation of the MLP's gate.
        mlp_name: What tensors call the feed-forward part.
    """

    layers = {FULL: ("attention",)}
    gate: ClassVar[kernels.Gate] = kernels.SILU
    mlp_name: ClassVar[str] = "mlp"

    def layer_types(self) -> list[Any]:
        """All alike."""
        return [FULL] * self.num_hidden_layers

    def options(self) -> dict[str, Any]:
        """What attention has in all layers, by the keywords of `AttentionMixer`."""
        return {}

    def attention(self, types: CacheTypes) -> Mixer:
        """Attention over all tokens."""
        return self.attention_mixer(types, **self.options())

    def feed_forward(self, layer: int, weights: LayerWeights) -> Sequence[FeedForward]:
        """One MLP."""
        return [self.mlp(weights, self.intermediate_size)]

    def mlp(
        self, weights: LayerWeights, inner: int, name: str | None = None, has_bias: bool = False
    ) -> GatedMLP:
        """An MLP of some inner width, under the name of the feed-forward part or another.

        Raises:
            ValueError: A tensor is missing, damaged or misshapen, or ranks can't share it.
        """
        args = (f"{name or self.mlp_name}.", self.hidden_size, inner)
        biases = weights.gated_mlp_biases(*args) if has_bias else {}
        return GatedMLP(*weights.gated_mlp(*args), gate=self.gate, **biases)
