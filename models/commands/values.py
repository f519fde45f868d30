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


def positive_or_all(text: str) -> int | None:
    """A whole number above 0; None for all."""
    return None if text == "all" else positive(text)


def biases(text: str) -> dict[int, float]:
    """Numbers by whole numbers, from `5=-2,7=1.5`."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {whole(key): real(value) for key, _, value in pairs}


def real(text: str) -> float:
    """A number with or without a fraction."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {_short(text)}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
