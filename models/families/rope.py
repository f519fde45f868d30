"""Rotary positions, in families that have them: how queries and keys turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from blockstride.checks import expect
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import Key, constant
from blockstride.models.families.roles import HasAttention
from blockstride.models.families.rope_types import expect_positive, scaling_of
from blockstride.models.modules import AttentionMixer, Rotary

FULL, SLIDING = "full_attention", "sliding_attention"


class HasRope(HasAttention, ModelFamily):
    """A family whose queries and keys turn with their positions.

    Files say it in `rope_parameters`, or `rope_scaling` in older ones; `rope_theta` may stand
    beside them. They may say it for each type of layer.

    Attributes:
        turning_share: Of the elements of a head, those that turn where `rope_parameters` don't
            say; None for all of them, whatever they say. It may be a key.
        default_theta: The base of frequencies where a file doesn't say.
        default_rope: What a file means that says nothing of positions.
    """

    turning_share: Key[float | None] = constant(None)
    default_theta: ClassVar[float] = 10000.0
    default_rope: ClassVar[Mapping[str, Any]] = {}

    @property
    def has_rope(self) -> bool:
        """Whether there are positions at all."""
        return True

    def rope_of(self, layer_type: str = FULL) -> dict[str, Any]:
        """What a file says for a type of layer, with theta and the share that turns.

        Raises:
            ValueError: It can't be.
        """
        said, types = self.rope_said, self._rope_types
        if types:
            expect(layer_type in types, "rope_parameters", layer_type, f"some for {types}")
            said = said[layer_type]
        share = said.get("partial_rotary_factor")
        if share is not None:
            expect_positive("partial_rotary_factor", share)
        if self.turning_share is None or share is None:
            share = self.turning_share
        theta = said.get("rope_theta")
        theta = self.values.get("rope_theta") if theta is None else theta
        theta = expect_positive("rope_theta", self.default_theta if theta is None else theta)
        return {**said, "rope_theta": theta, "partial_rotary_factor": share}

    @cached_property
    def rope_said(self) -> Mapping[str, Any]:
        """What a file says of positions, be it for all layers or for each type of them.

        Raises:
            ValueError: It is no object.
        """
        said = self.values.get("rope_scaling") or self.values.get("rope_parameters")
        said = self.default_rope if said is None else said
        expect(isinstance(said, Mapping), "rope_parameters", "an object", repr(said))
        return said

    @property
    def _rope_types(self) -> list[str]:
        """Types of layers that have positions of their own; none where all have the same."""
        return [name for name, said in self.rope_said.items() if isinstance(said, Mapping)]

    @cached_property
    def _rotaries(self) -> dict[tuple[Any, ...], Rotary]:
        return {}

    def rotary_of(self, layer_type: str = FULL) -> Rotary | None:
        """The angles of a type of layer, which all alike share; None without positions.

        Raises:
            ValueError: A file says what can't be.
        """
        if not self.has_rope:
            return None
        said = self.rope_of(layer_type)
        share = said["partial_rotary_factor"]
        size = self.head_size if share is None else int(self.head_size * share)
        original = self.values.get("original_max_position_embeddings")
        scaling = scaling_of(said, self.max_position_embeddings, original, -(-size // 2))
        key = (size, said["rope_theta"], scaling)
        return self._rotaries.setdefault(key, Rotary(size, self.head_size, *key[1:]))

    def attention_mixer(
        self, types: CacheTypes, *, layer_type: str = FULL, **how: Any
    ) -> AttentionMixer:
        """As that of `HasAttention`, with the positions of a type of layer."""
        return super().attention_mixer(types, rotary=self.rotary_of(layer_type), **how)

    def numbers(self) -> dict[str, Any]:
        """The value of every key, and of what bears on positions."""
        if not self.has_rope:
            return super().numbers()
        rotaries = {name: self.rotary_of(name) for name in self._rope_types or [FULL]}
        turns = {
            name: (rotary.size, rotary.theta, rotary.scaling)
            for name, rotary in rotaries.items()
            if rotary is not None
        }
        return {**super().numbers(), "rotary": turns}
