"""Engines on a command line, as in `tp=4,layout=BHLNC,block=16`."""

from __future__ import annotations

from collections.abc import Sequence

from blockstride.kernels.checks import expect


class EngineKeys:
    """The keys and values of one engine.

    Args:
        option: What it was given as; what messages begin with.
        text: `key=value,key=value`, or nothing.
        known: The keys that there are.

    Raises:
        ValueError: An unknown key, or one without a value.
    """

    def __init__(self, option: str, text: str, known: Sequence[str]) -> None:
        self.option = option
        self._given: dict[str, str] = {}
        for part in filter(None, text.split(",")):
            key, equals, value = part.partition("=")
            fits = bool(equals) and key in known
            expect(fits, option, f"key=value with a key of {', '.join(known)}", repr(part))
            self._given[key] = value

    def text(self, key: str, default: str) -> str:
        """The value of a key."""
        return self._given.get(key, default)

    def number(self, key: str, default: int) -> int:
        """The positive number that a key has.

        Raises:
            ValueError: It is something else.
        """
        value = self._given.get(key, str(default))
        fits = value.isdecimal() and int(value) > 0
        expect(fits, f"{self.option} {key}", "a positive number", value)
        return int(value)

    def optional(self, key: str, default: int | None = None) -> int | None:
        """The positive number that a key has, if it is given."""
        return self.number(key, 1) if key in self._given else default
