"""The numbers of a Bamba checkpoint, read from its config.json and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from blockstride.checks import expect
from blockstride.models.config_values import expect_positive, read_rope, read_values
from blockstride.models.mamba2_hybrid import Mamba2Config, mamba2_values


@dataclass(frozen=True, kw_only=True)
class BambaConfig(Mamba2Config):
    """Architecture of a Bamba model; what it has in common with others is in `Mamba2Config`.

    Attributes:
        attn_layer_indices: Layers with attention; None for none.
        partial_rotary_factor: Of the elements of a head, those that turn.
        mlp_bias: Whether the projections of the MLP have a bias; only False exists.

    Raises:
        ValueError: A number that can't be, or two that contradict each other.
    """

    model_type: ClassVar[str] = "bamba"
    vocab_size: int = 128000
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    attn_layer_indices: list[int] | None = None
    partial_rotary_factor: float = 0.5
    mlp_bias: bool = False
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 262144

    def __post_init__(self) -> None:
        expect_positive(self)
        last, layers = self.num_hidden_layers - 1, self.attn_layer_indices or []
        fits = all(isinstance(i, int) and 0 <= i <= last for i in layers)
        expect(fits, "attn_layer_indices", f"layers from 0 to {last}", layers)
        expect(not self.mlp_bias, "mlp_bias", "false", self.mlp_bias)
        super().__post_init__()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BambaConfig:
        """The config in a parsed config.json; keys that don't bear on inference are ignored.

        Raises:
            ValueError: Another architecture, or a value that can't be.
        """
        values, null = mamba2_values(values)
        return read_values(cls, {**values, **read_rope(values)}, null)

    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""
        return layer in (self.attn_layer_indices or ())
