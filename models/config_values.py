"""From a parsed config.json to a dataclass with the same names, checked value by value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from math import inf
from typing import Any, TypeVar

from blockstride.checks import expect

Config = TypeVar("Config")
KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str}


def read_values(
    cls: type[Config], values: Mapping[str, Any], null: Mapping[str, Any] | None = None
) -> Config:
    """A config of one architecture; keys that don't bear on inference are ignored.

    A key that is absent or null means what its field defaults to.

    Args:
        cls: A dataclass with a `model_type`, whose fields are called as the keys of config.json.
        values: The parsed config.json.
        null: What null means where that is not the default.

    Raises:
        ValueError: Another architecture, or a value that can't be.
    """
    kind, model_type = values.get("model_type"), cls.model_type  # type: ignore[attr-defined]
    expect(kind == model_type, "model_type", repr(model_type), repr(kind))
    types = {field.name: str(field.type) for field in fields(cls)}  # type: ignore[arg-type]
    nulls = {name: value for name, value in (null or {}).items() if name in values}
    given = {name: values[name] for name in types if values.get(name) is not None}
    for name, value in given.items():
        _check_type(name, types[name], value)
        if types[name] == "float":
            given[name] = float(value)
    return cls(**{**nulls, **given})


def _check_type(name: str, annotation: str, value: object) -> None:
    options = [part.strip() for part in annotation.split("|")]
    right = any(
        isinstance(value, KINDS.get(part, (list, tuple)))
        and (part == "bool" or not isinstance(value, bool))
        for part in options
        if part != "None"
    )
    expect(right, name, annotation, repr(value))
    if isinstance(value, str) and "int" in options:
        expect(value == "auto", name, "a number or 'auto'", repr(value))


def expect_positive(config: Any, but: Collection[str] = ()) -> None:
    """Raise `ValueError` unless all whole numbers of a config are positive.

    Args:
        config: A dataclass.
        but: Fields that may be something else.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and field.name not in but:
            expect(value > 0, field.name, "a positive number", value)


def expect_heads(hidden_size: int, head_dim: int | None, num_heads: int, num_kv_heads: int) -> None:
    """Raise `ValueError` unless heads cut the hidden size, and KV heads the heads."""
    fits = head_dim is not None or hidden_size % num_heads == 0
    expect(fits, "num_attention_heads", f"a divisor of {hidden_size}", num_heads)
    fits = num_heads % num_kv_heads == 0
    expect(fits, "num_key_value_heads", f"a divisor of {num_heads}", num_kv_heads)


def read_limits(values: Mapping[str, Any], name: str) -> tuple[float, float]:
    """The lowest and the highest value of something; 0 and infinity where a config says nothing."""
    limits = values.get(name)
    limits = (0.0, inf) if limits is None else limits
    are_numbers = isinstance(limits, list | tuple) and len(limits) == 2
    are_numbers = are_numbers and all(
        isinstance(limit, int | float) and not isinstance(limit, bool) for limit in limits
    )
    fits = are_numbers and 0 <= limits[0] <= limits[1]
    expect(fits, name, "two numbers, neither below 0, the smaller first", repr(limits))
    return float(limits[0]), float(limits[1])


def read_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """How positions turn queries and keys, from the places in which published files say it.

    That is `rope_parameters`, or `rope_scaling` in older files; `rope_theta` may stand beside them.

    Returns:
        `rope_theta`, and the `partial_rotary_factor` of the inner object, None where it has none;
        transformers takes no other.

    Raises:
        ValueError: A kind of scaling that is not supported, or numbers that can't be.
    """
    inner = values.get("rope_scaling") or values.get("rope_parameters") or {}
    expect(isinstance(inner, Mapping), "rope_parameters", "an object", repr(inner))
    nested = [name for name, value in inner.items() if isinstance(value, Mapping)]
    expect(not nested, "rope_parameters", "the same for all layers", f"some for {nested}")
    kind = inner.get("rope_type", inner.get("type", "default"))
    expect(kind == "default", "rope_type", "'default'", repr(kind))
    theta = values.get("rope_theta") if inner.get("rope_theta") is None else inner["rope_theta"]
    rope = {"rope_theta": theta, "partial_rotary_factor": inner.get("partial_rotary_factor")}
    for name, value in rope.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = value is None or (is_number and 0 < value < inf)
        expect(fits, name, "a positive number", repr(value))
    return rope


def end_tokens(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> frozenset[int]:
    """The tokens that end a text.

    Args:
        config: The parsed config.json.
        generation: The parsed generation_config.json, if there is one; what it says counts.

    Raises:
        ValueError: Something else than a token or several.
    """
    said = (generation or {}).get("eos_token_id")
    said = config.get("eos_token_id") if said is None else said
    tokens = [] if said is None else said if isinstance(said, list) else [said]
    fits = all(isinstance(token, int) and not isinstance(token, bool) for token in tokens)
    expect(fits, "eos_token_id", "a token or a list of tokens", repr(said))
    return frozenset(tokens)
