"""Numbers on a command line."""

from __future__ import annotations

from argparse import ArgumentTypeError


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, got {_short(text)}") from None


def positive(text: str) -> int:
    """A whole number above 0."""
    number = whole(text)
    if number <= 0:
        raise ArgumentTypeError(f"expected a positive number, got {_short(text)}")
    return number


def real(text: str) -> float:
    """A number with or without a fraction."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {_short(text)}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
