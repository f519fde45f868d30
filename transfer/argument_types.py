"""Types of arguments, refused where they come in instead of deep within a thread or a message."""

from __future__ import annotations

from reprlib import repr as brief
from types import UnionType

from blockstride.kernels.checks import expect


def expect_type(value: object, name: str, kind: type | UnionType) -> None:
    """Raises `TypeError` unless a value has a type; a bool is no number."""
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    wanted = kind.__name__ if isinstance(kind, type) else str(kind)
    expect(right, name, wanted, f"{brief(value)} ({type(value).__name__})", TypeError)


def expect_seconds(value: object, name: str) -> None:
    """Raises unless a value is a time that ends: a wait without an end is refused by name.

    Raises:
        TypeError: It is no number.
        ValueError: It is infinite, NaN, 0 or less.
    """
    expect_type(value, name, int | float)
    assert isinstance(value, int | float), "checked above"
    expect(0 < value < float("inf"), name, "more than 0 and finite", value)
