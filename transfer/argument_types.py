"""Types of arguments, refused where they come in instead of deep within a thread or a message."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from reprlib import repr as brief
from types import UnionType
from typing import Any

from blockstride.checks import expect


def expect_type(value: object, name: str, kind: type | UnionType) -> None:
    """Raises `TypeError` unless a value has a type."""
    wanted = kind.__name__ if isinstance(kind, type) else str(kind)
    expect(isinstance(value, kind), name, wanted, _told(value), TypeError)


def whole(value: object, name: str, least: int = 0) -> int:
    """A whole number of any type that counts, numpy's included.

    Args:
        value: What was given.
        name: As what.
        least: The smallest that can be.

    Raises:
        TypeError: It is no whole number; neither is True.
        ValueError: It is smaller.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    expect(is_whole, name, "a whole number", _told(value), TypeError)
    number = int(value)  # type: ignore[arg-type]
    expect(number >= least, name, f"at least {least}", number)
    return number


def expect_seconds(value: object, name: str, *, or_none_at_all: bool = False) -> None:
    """Raises unless a value is a time that ends: no wait is without an end.

    Args:
        value: What was given.
        name: As what.
        or_none_at_all: Whether 0 is a time, too.

    Raises:
        TypeError: It is no number.
        ValueError: It is not finite, or not positive.
    """
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    expect(is_real, name, "a number of seconds", _told(value), TypeError)
    seconds = float(value)  # type: ignore[arg-type]
    positive = seconds > 0 or (or_none_at_all and seconds == 0)
    wanted = "0 or more seconds" if or_none_at_all else "more than 0 seconds"
    expect(positive and math.isfinite(seconds), name, f"{wanted}, and an end", value)


def names(values: object, name: str) -> tuple[str, ...]:
    """Several names; one alone is taken for no list of its letters.

    Raises:
        TypeError: Something else.
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    found: tuple[Any, ...] = tuple(values) if is_list else ()  # type: ignore[arg-type]
    right = is_list and all(isinstance(value, str) for value in found)
    expect(right, name, "several names", _told(values), TypeError)
    return found


def _told(value: object) -> str:
    return f"{brief(value)} ({type(value).__name__})"
