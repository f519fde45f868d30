"""What files say of frequencies that are changed for long sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from blockstride.checks import expect
from blockstride.models.families.keys import is_real, is_whole
from blockstride.models.modules.rope_scaling import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Scaling,
    Yarn,
)

Said = Mapping[str, Any]


def scaling_of(said: Said, max_len: int, original: Any, pairs: int) -> Scaling:
    """The change that the positions of a model are subject to.

    Args:
        said: `rope_parameters` of a file.
        max_len: Positions that the model was made for.
        original: Those of its training, where a file says that beside `rope_parameters`; else None.
        pairs: Frequencies.

    Raises:
        ValueError: A kind that isn't known, or a number that it needs is missing or can't be.
    """
    kind = rope_type(said)
    known = kind == "default" or kind in READERS
    expect(known, "rope_type", f"default, {', '.join(READERS)}", repr(kind))
    if kind == "default":
        return Scaling()
    if original is None:
        original = said.get("original_max_position_embeddings", max_len)
    expect(
        is_whole(original) and original > 0,
        "original_max_position_embeddings",
        "a positive number of tokens",
        repr(original),
    )
    return READERS[kind](said, max_len, original, pairs)


def rope_type(said: Said) -> Any:
    """The kind, by its newer name or the older one."""
    kind = said.get("rope_type", said.get("type"))
    # three positions a token, which for text are one and the same
    return "default" if kind in (None, "mrope") else kind


def expect_positive(name: str, value: Any) -> float:
    """A positive number.

    Raises:
        ValueError: It is none.
    """
    fits = value is not None and is_real(value) and 0 < value < inf
    expect(fits, name, "a positive number", "nothing" if value is None else repr(value))
    return float(value or 0)


def _number(said: Said, name: str, default: float | None = None) -> float:
    value = said.get(name)
    return expect_positive(name, default if value is None else value)


def _linear(said: Said, max_len: int, original: int, pairs: int) -> Scaling:
    return Linear(factor=_number(said, "factor"))


def _dynamic(said: Said, max_len: int, original: int, pairs: int) -> Scaling:
    return Dynamic(factor=_number(said, "factor"), max_len=max_len)


def _llama3(said: Said, max_len: int, original: int, pairs: int) -> Scaling:
    slow, fast = _number(said, "low_freq_factor"), _number(said, "high_freq_factor")
    expect(slow < fast, "high_freq_factor", f"more than low_freq_factor, {slow}", fast)
    return Llama3(factor=_number(said, "factor"), slow=slow, fast=fast, original=original)


def _yarn(said: Said, max_len: int, original: int, pairs: int) -> Scaling:
    factor = _number(said, "factor", max_len / original)
    scale = said.get("attention_factor")
    if scale is None:
        parts = (said.get("mscale"), said.get("mscale_all_dim"))
        if all(parts):
            above, below = (_yarn_scale(factor, expect_positive("mscale", part)) for part in parts)
            scale = above / below
        else:
            scale = _yarn_scale(factor)
    return Yarn(
        scale=expect_positive("attention_factor", scale),
        factor=factor,
        # as in files, where 0 means that nothing is said
        slow=_number(said, "beta_slow", 1.0) if said.get("beta_slow") else 1.0,
        fast=_number(said, "beta_fast", 32.0) if said.get("beta_fast") else 32.0,
        original=original,
        is_rounded=bool(said.get("truncate", True)),
    )


def _yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Source: Peng et al., "YaRN", 3.4."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(said: Said, max_len: int, original: int, pairs: int) -> Scaling:
    divisors = {}
    for name in ("short_factor", "long_factor"):
        row = said.get(name)
        row = row if isinstance(row, list) else []
        expect(len(row) == pairs, name, f"a list of {pairs} numbers", f"{len(row)} of them")
        divisors[name] = tuple(expect_positive(name, value) for value in row)
    factor, scale = _number(said, "factor", max_len / original), said.get("attention_factor")
    if scale is None:
        growth = math.log(factor) / math.log(original) if factor > 1 else 0.0
        scale = math.sqrt(1 + growth)
    return LongRope(
        scale=expect_positive("attention_factor", scale),
        short=divisors["short_factor"],
        long=divisors["long_factor"],
        original=original,
    )


READERS: dict[str, Callable[[Said, int, int, int], Scaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""Kind of change -> what reads it."""
