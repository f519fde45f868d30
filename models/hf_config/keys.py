"""A config.json read by role: what a number is for, not what one family of models calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockstride.checks import expect

NAMES: Mapping[str, Sequence[str]] = {"attention_width": ("hidden_size",)}
"""Keys of the roles that are called otherwise in every family, unless the family says so."""


@dataclass(frozen=True)
class Keys:
    """A parsed config.json and the names that its family uses.

    Attributes:
        config: The file.
        names: Role -> the keys that may hold it; the first that is there and not null counts. A
            role that is not listed is its own key; one listed without keys is never there.
        defaults: What keys mean that the file leaves out.
    """

    config: Mapping[str, Any]
    names: Mapping[str, Sequence[str]]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def _keys(self, role: str) -> Sequence[str]:
        return self.names.get(role, NAMES.get(role, (role,)))

    def key(self, role: str) -> str:
        """What the file calls a role, for messages too."""
        keys = self._keys(role)
        there = (key for key in keys if self.config.get(key) is not None)
        return next(there, next(iter(keys), role))

    def value(self, role: str) -> Any:
        """The value of a role; None where it is missing, null, or left open by `"auto"`."""
        keys = self._keys(role)
        if any(key in self.config for key in keys):
            value = self.config.get(self.key(role))
        else:
            value = next((self.defaults[key] for key in keys if key in self.defaults), None)
        return None if value == "auto" else value

    def count(self, role: str, default: int | None = None) -> int:
        """The value of a role that counts something.

        Raises:
            ValueError: It is no positive integer, or missing where there is no `default`.
        """
        value = self.value(role)
        value = default if value is None else value
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        got = "nothing" if value is None else repr(value)
        expect(is_count, self.key(role), "a positive integer in config.json", got)
        return int(value or 0)

    def expect(self, condition: bool, role: str, expected: object) -> None:
        """Raise `ValueError` about the value of a role unless `condition` holds."""
        value = self.value(role)
        got = "nothing" if value is None else repr(value)
        expect(condition, self.key(role), expected, got)
