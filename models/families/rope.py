"""Rotary positions, from the places in which published files say how queries and keys turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf
from typing import Any, ClassVar

from blockstride.checks import expect
from blockstride.models.cache_types import CacheTypes
from blockstride.models.families.family import ModelFamily
from blockstride.models.families.keys import Key, constant, is_real
from blockstride.models.families.roles import HasAttention
from blockstride.models.modules import AttentionMixer, Rotary


class HasRope(HasAttention, ModelFamily):
    """A family whose queries and keys turn with their positions.

    Files say it in `rope_parameters`, or `rope_scaling` in older ones; `rope_theta` may stand
    beside them.

    Attributes:
        turning_share: Of the elements of a head, those that turn where `rope_parameters` don't
            say; None for all of them, whatever they say. It may be a key.
        default_theta: The base of frequencies where a file doesn't say.
    """

    turning_share: Key[float | None] = constant(None)
    default_theta: ClassVar[float] = 10000.0

    @property
    def has_rope(self) -> bool:
        """Whether there are positions at all."""
        return True

    @cached_property
    def rope(self) -> dict[str, float | None]:
        """The numbers that count: `rope_theta` and `partial_rotary_factor`; none without positions.

        Raises:
            ValueError: One can't be.
        """
        if not self.has_rope:
            return {}
        inner = self._inner_rope()
        share = inner.get("partial_rotary_factor")
        _expect_positive("partial_rotary_factor", share)
        if self.turning_share is None or share is None:
            share = self.turning_share
        theta = inner.get("rope_theta")
        theta = self.values.get("rope_theta") if theta is None else theta
        _expect_positive("rope_theta", theta)
        return {"rope_theta": float(theta or self.default_theta), "partial_rotary_factor": share}

    @cached_property
    def rotary(self) -> Rotary | None:
        """The angles, which all layers share; None without positions."""
        if not self.has_rope:
            return None
        theta, share = self.rope["rope_theta"], self.rope["partial_rotary_factor"]
        assert theta is not None, "it has a default"
        size = self.head_size if share is None else int(self.head_size * share)
        return Rotary(size, self.head_size, theta)

    def attention_mixer(self, types: CacheTypes, **how: Any) -> AttentionMixer:
        """As that of `HasAttention`, with these positions."""
        return super().attention_mixer(types, rotary=self.rotary, **how)

    def numbers(self) -> dict[str, Any]:
        """The value of every key, and of what bears on positions."""
        return {**super().numbers(), **self.rope}

    def check(self) -> None:
        """Raise `ValueError` unless all keys are such that the model runs."""
        super().check()
        if self.has_rope:
            inner = self._inner_rope()
            nested = [name for name, value in inner.items() if isinstance(value, Mapping)]
            expect(not nested, "rope_parameters", "the same for all layers", f"some for {nested}")
            kind = inner.get("rope_type", inner.get("type", "default"))
            expect(kind == "default", "rope_type", "'default'", repr(kind))

    def _inner_rope(self) -> Mapping[str, Any]:
        inner = self.values.get("rope_scaling") or self.values.get("rope_parameters") or {}
        expect(isinstance(inner, Mapping), "rope_parameters", "an object", repr(inner))
        return inner


def _expect_positive(name: str, value: Any) -> None:
    fits = value is None or (is_real(value) and 0 < value < inf)
    expect(fits, name, "a positive number", repr(value))
