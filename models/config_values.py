"""From a parsed config.json to a dataclass with the same names, checked value by value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from blockstride.kernels.checks import expect

Config = TypeVar("Config")
KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str, "list[int]": list}


def read_values(cls: type[Config], model_type: str, values: Mapping[str, Any]) -> Config:
    """A config of one architecture; keys that don't bear on inference are ignored.

    Args:
        cls: A dataclass whose fields are called as the keys of config.json.
        model_type: The architecture.
        values: The parsed config.json.

    Raises:
        ValueError: Another architecture, a missing key, or a value that can't be.
    """
    kind = values.get("model_type")
    expect(kind == model_type, "model_type", repr(model_type), repr(kind))
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    given = {name: values[name] for name in known if values.get(name) is not None}
    # Hugging Face's name for MHA is to leave the number of KV heads out
    given.setdefault("num_key_value_heads", given.get("num_attention_heads"))
    for name, field in known.items():
        if field.default is MISSING:
            what = "a list" if "list" in str(field.type) else "a number"
            expect(given.get(name) is not None, name, f"{what} in config.json", "nothing")
    for name, value in given.items():
        _check_type(name, str(known[name].type), value)
    return cls(**given)


def _check_type(name: str, annotation: str, value: object) -> None:
    options = [part.strip() for part in annotation.split("|")]
    right = any(
        isinstance(value, KINDS.get(part, list)) and (part == "bool" or not isinstance(value, bool))
        for part in options
        if part != "None"
    )
    expect(right, name, annotation, repr(value))
    if isinstance(value, str) and "int" in options:
        expect(value == "auto", name, "a number or 'auto'", repr(value))


def expect_positive(config: Any, but: Collection[str]) -> None:
    """Raise `ValueError` unless all whole numbers of a config are positive.

    Args:
        config: A dataclass.
        but: Fields that may be something else.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int) and not isinstance(value, bool) and field.name not in but:
            expect(value > 0, field.name, "a positive number", value)


def expect_heads(hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
    """Raise `ValueError` unless heads cut the hidden size, and KV heads the heads."""
    fits = hidden_size % num_heads == 0
    expect(fits, "num_attention_heads", f"a divisor of {hidden_size}", num_heads)
    fits = num_heads % num_kv_heads == 0
    expect(fits, "num_key_value_heads", f"a divisor of {num_heads}", num_kv_heads)


def expect_mamba2(d_inner: int, num_heads: int, n_groups: int, d_conv: int) -> None:
    """Raise `ValueError` unless heads cut the channels of Mamba-2, and groups the heads."""
    expect(d_inner % num_heads == 0, "mamba_n_heads", f"a divisor of {d_inner}", num_heads)
    fits = num_heads % n_groups == 0
    expect(fits, "mamba_n_groups", f"a divisor of {num_heads} heads", n_groups)
    expect(d_conv >= 2, "mamba_d_conv", "at least 2", d_conv)


def token_ids(ids: int | list[int] | None) -> frozenset[int]:
    """The tokens of a key that has none, one or several."""
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)
