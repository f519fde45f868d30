"""Engines on a command line, as in `tp=4,layout=BHLNC,block=16`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from blockstride.checks import expect

DIGITS = 18
"""Of the longest number that anything here counts to."""


class EngineKeys:
    """The keys and values of one engine; iterates over the keys that were given.

    Args:
        option: What it was given as; what messages begin with.
        text: `key=value,key=value`, or nothing.
        known: The keys that there are.

    Raises:
        ValueError: An unknown key, one without a value, or one twice.
    """

    def __init__(self, option: str, text: str, known: Collection[str]) -> None:
        self.option = option
        self._given: dict[str, str] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            key, _, value = (word.strip() for word in part.partition("="))
            fits = bool(value) and key in known
            expect(fits, option, f"key=value with a key of {', '.join(known)}", repr(part))
            expect(key not in self._given, f"{option} {key}", "one value", f"two in {text!r}")
            self._given[key] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def text(self, key: str, default: str = "") -> str:
        """The value of a key."""
        return self._given.get(key, default)

    def number(self, key: str, default: int = 1) -> int:
        """The positive number that a key has.

        Raises:
            ValueError: It is something else.
        """
        value = self._given.get(key, str(default))
        fits = value.isdecimal() and len(value) <= DIGITS and int(value) > 0
        expect(fits, f"{self.option} {key}", "a positive number", value)
        return int(value)

    def optional(self, key: str) -> int | None:
        """The positive number that a key has, if it is given."""
        return self.number(key) if key in self._given else None
