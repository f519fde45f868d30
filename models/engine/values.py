"""Numbers and switches that callers give: of the right type, in range, or refused by name."""

from __future__ import annotations

import math
from numbers import Integral, Real

from blockstride.checks import expect


def whole(value: object, name: str, least: int, expected: str) -> int:
    """A whole number of any type that counts, numpy's included.

    Args:
        value: What was given.
        name: As what.
        least: The smallest that can be.
        expected: What can be, for a message.

    Raises:
        TypeError: It is no whole number; neither is True.
        ValueError: It is smaller.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    expect(is_whole, name, f"a whole number, {expected}", repr(value), TypeError)
    number = int(value)  # type: ignore[arg-type]
    expect(number >= least, name, expected, number)
    return number


def real(value: object, name: str, expected: str) -> float:
    """A finite number of any type that counts.

    Raises:
        TypeError: It is no number.
        ValueError: It is not finite.
    """
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    expect(is_real, name, f"a number, {expected}", repr(value), TypeError)
    number = float(value)  # type: ignore[arg-type]
    expect(math.isfinite(number), name, expected, number)
    return number


def expect_type(value: object, name: str, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise `TypeError` unless a value is an instance of `kind`."""
    expect(isinstance(value, kind), name, expected, repr(value), TypeError)
