"""The numbers of a Granite hybrid, read from its config.json and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from blockstride.checks import expect
from blockstride.models.config_values import (
    expect_positive,
    read_rope,
    read_values,
)
from blockstride.models.mamba2_hybrid import Mamba2Config, mamba2_values

ATTENTION = ("attention", "full_attention")
MAMBA = ("mamba", "linear_attention")


@dataclass(frozen=True, kw_only=True)
class GraniteHybridConfig(Mamba2Config):
    """Architecture of a Granite 4 hybrid; what it has in common is in `Mamba2Config`.

    Attributes:
        shared_intermediate_size: Inner width of the MLP that every token visits.
        layer_types: The mixer of each layer; Mamba-2 in all when None.
        num_local_experts: Experts of a layer; 0 for none.
        num_experts_per_tok: Experts that each token visits, where there are any.
        position_embedding_type: `"rope"`, or anything else for no positions.
        attention_multiplier: Of attention scores.
        embedding_multiplier: Of embeddings.
        residual_multiplier: Of what a layer adds to the residual stream.
        logits_scaling: Divides logits.

    Raises:
        ValueError: A number that can't be, or two that contradict each other.
    """

    model_type: ClassVar[str] = "granitemoehybrid"
    vocab_size: int = 32000
    intermediate_size: int = 11008
    shared_intermediate_size: int = 1024
    num_key_value_heads: int | None = None
    layer_types: list[str] | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    position_embedding_type: str | None = None
    attention_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        # a dense file may say anything of the experts that it doesn't have
        unused = ("num_local_experts", "num_experts_per_tok", "intermediate_size")
        expect_positive(self, but=() if self.num_local_experts else unused)
        if self.num_local_experts:
            most, experts = self.num_local_experts, self.num_experts_per_tok
            expect(experts <= most, "num_experts_per_tok", f"at most {most}", experts)
        if self.layer_types is not None:
            layers, kinds = self.num_hidden_layers, (*ATTENTION, *MAMBA)
            fits = len(self.layer_types) == layers and all(t in kinds for t in self.layer_types)
            expect(fits, "layer_types", f"{layers} of {kinds}", self.layer_types)
        super().__post_init__()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GraniteHybridConfig:
        """The config in a parsed config.json; keys that don't bear on inference are ignored.

        Raises:
            ValueError: Another architecture, or a value that can't be.
        """
        # older files call it so
        types = values.get("layers_block_type") or values.get("layer_types")
        values, null = mamba2_values({**values, "layer_types": types})
        if values.get("position_embedding_type") == "rope":
            values |= {"rope_theta": read_rope(values)["rope_theta"]}
        return read_values(cls, values, null)

    def has_attention(self, layer: int) -> bool:
        """Whether the mixer of a layer is attention; else it is Mamba-2."""
        return self.layer_types is not None and self.layer_types[layer] in ATTENTION
