"""Keys of a config.json, as attributes of the family that reads it.

A family declares `d_state = count(16, "mamba_d_state")` and reads `self.d_state`. A key that a file
leaves out means its default; one that is null means None, which most may not be; `"auto"` is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Generic, TypeVar, overload

from blockstride.checks import expect

Value = TypeVar("Value")


class Key(Generic[Value]):
    """A key of a config.json; the value is read, and checked, when it is asked for.

    Args:
        default: What it means that a file has no such key.
        names: Keys that may hold it; the first that is there and not null counts. None of them: the
            key is called as the attribute is.
        expected: What may stand there, for messages.
        convert: Makes the value of what stands there, or returns None where it can't be; all may
            stand there when None.
        null: What null means, where it may stand there.
    """

    def __init__(
        self,
        default: Any,
        names: tuple[str, ...] = (),
        *,
        expected: str = "",
        convert: Callable[[Any], Value | None] | None = None,
        is_nullable: bool = False,
        null: Any = None,
    ) -> None:
        self.default, self.names = default, names
        self.expected, self.convert = expected, convert
        self.is_nullable, self.null = is_nullable, null

    def __set_name__(self, owner: type, role: str) -> None:
        self.role, self.names = role, self.names or (role,)

    @overload
    def __get__(self, family: None, owner: type) -> Key[Value]: ...
    @overload
    def __get__(self, family: Any, owner: type) -> Value: ...
    def __get__(self, family: Any, owner: type) -> Key[Value] | Value:
        if family is None:
            return self
        # from now on the attribute is found there
        value = family.__dict__[self.role] = self._read(family.values)
        return value

    def _read(self, values: Mapping[str, Any]) -> Any:
        value = self.stated(values)
        if value is None and self.is_nullable:
            return self.null
        if self.convert is None:
            return value
        read = None if value is None else self.convert(value)
        got = "nothing" if value is None else repr(value)
        expect(read is not None, self.name(values), self.expected, got)
        return read

    def name(self, values: Mapping[str, Any]) -> str:
        """What a file calls it, for messages."""
        told = [name for name in self.names if values.get(name) is not None]
        there = [name for name in self.names if name in values]
        return next(iter(told + there), self.names[0])

    def stated(self, values: Mapping[str, Any]) -> Any:
        """What a file says, or means by saying nothing; None for null and for `"auto"`."""
        is_there = any(name in values for name in self.names)
        value = values.get(self.name(values)) if is_there else self.default
        return None if value == "auto" else value


class Constant(Key[Value]):
    """A number that other families read from the file, and this one has whatever the file says."""

    def stated(self, values: Mapping[str, Any]) -> Any:
        """The default."""
        return self.default


def count(default: int, *names: str) -> Key[int]:
    """A positive integer."""
    return Key(default, names, expected="a positive integer in config.json", convert=_positive)


def optional(default: int | None = None, *names: str) -> Key[int | None]:
    """A positive integer, or null for what follows from others."""
    expected = "a positive integer in config.json"
    return Key(default, names, expected=expected, convert=_positive, is_nullable=True)


def number(default: float, *names: str) -> Key[float]:
    """A number."""
    return Key(default, names, expected="a number", convert=_real)


def cap(default: float, *names: str) -> Key[float | None]:
    """A bound that a hyperbolic tangent keeps numbers below."""
    return Key(default, names, expected="a positive number", convert=_positive_real)


def bound(default: float, *names: str) -> Key[float | None]:
    """The same, or null for none."""
    expected = "a positive number"
    return Key(default, names, expected=expected, convert=_positive_real, is_nullable=True)


def switch(default: bool, *names: str) -> Key[bool]:
    """True or false; null is false."""
    return Key(
        default, names, expected="true or false", convert=_switch, is_nullable=True, null=False
    )


def limits(*names: str) -> Key[tuple[float, float]]:
    """The lowest and the highest value of something; 0 and infinity where a file says nothing."""
    every = (0.0, inf)
    expected = "two numbers, neither below 0, the smaller first"
    return Key(every, names, expected=expected, convert=_limits, is_nullable=True, null=every)


def several(*default: float) -> Key[tuple[float, ...]]:
    """As many numbers as the default has, which null means too."""
    size = len(default)

    def convert(value: Any) -> tuple[float, ...] | None:
        fits = isinstance(value, list | tuple) and len(value) == size and all(map(is_real, value))
        return tuple(map(float, value)) if fits else None

    expected = f"{size} numbers"
    return Key(default, expected=expected, convert=convert, is_nullable=True, null=default)


def share(default: float, name: str) -> Key[float | None]:
    """A positive number of times a whole; null is all of it."""
    return Key(
        default,
        (name,),
        expected="a positive number",
        convert=_positive_real,
        is_nullable=True,
        null=1.0,
    )


def anything(default: Any = None, *names: str) -> Key[Any]:
    """Whatever a file says, for a family that checks it on its own."""
    return Key(default, names)


def constant(value: Value) -> Key[Value]:
    """What is the same in every file of a family, and stands in those of others."""
    return Constant(value)


def is_whole(value: object) -> bool:
    """Whether a value is an integer, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether a value is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: Any) -> int | None:
    return value if is_whole(value) and value > 0 else None


def _real(value: Any) -> float | None:
    return float(value) if is_real(value) else None


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _limits(value: Any) -> tuple[float, float] | None:
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(is_real, value))
    return (float(value[0]), float(value[1])) if is_pair and 0 <= value[0] <= value[1] else None


def _positive_real(value: Any) -> float | None:
    return float(value) if is_real(value) and 0 < value < inf else None
