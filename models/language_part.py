"""The language model inside a model of several parts: what is said of it, and where it lies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

PARTS = ("text_config", "llm_config")
"""Where a config.json of several parts has that of the language model."""

WHOLE = "whole_model_type"
"""Key of a language part that says what it is a part of."""

HEAD = "lm_head.weight"


def language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a parsed config.json says of the language model; all of it where there is nothing else.

    Types of numbers and end tokens may be said of the whole.
    """
    part = next((config[name] for name in PARTS if isinstance(config.get(name), Mapping)), None)
    if part is None:
        return dict(config)
    shared = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id")
    of_whole = {name: config[name] for name in shared if config.get(name) is not None}
    of_part = {name: value for name, value in part.items() if value is not None}
    is_tied = part.get("tie_word_embeddings"), config.get("tie_word_embeddings")
    tied = {"tie_word_embeddings": True} if True in is_tied else {}
    return {**part, **of_whole, **of_part, **tied, WHOLE: config.get("model_type")}


def model_type(config: Mapping[str, Any]) -> str:
    """What a config.json says that a model is, and what it is a part of, for messages."""
    kind = repr(config.get("model_type"))
    return f"{kind}, the language part of {config[WHOLE]!r}" if WHOLE in config else kind


def prefix_of(names: Collection[str], prefixes: Sequence[str], embeddings: Sequence[str]) -> str:
    """What the names of a language model's tensors begin with.

    Args:
        names: Of all tensors.
        prefixes: What they begin with where there are no other parts, either of them.
        embeddings: The tensor that tells, which no other part has; either rest of its name.

    Returns:
        What stands before the one tensor of that name; if there is none, or several, the first
        prefix that any name has, or the first of all.
    """
    stated = (p for p in prefixes for rest in embeddings if f"{p}{rest}" in names)
    if (prefix := next(stated, None)) is not None:
        return prefix
    found = {
        name.removesuffix(rest)
        for rest in embeddings
        for name in names
        if name.endswith(f".{rest}")
    }
    if len(found) == 1:
        return found.pop()
    return next((p for p in prefixes if any(name.startswith(p) for name in names)), prefixes[0])


def head_of(names: Collection[str], prefix: str) -> str:
    """The name of a language model's head, which lies beside all or beside what `prefix` names."""
    beside = f"{prefix.removesuffix('.').rpartition('.')[0]}.{HEAD}"
    return beside if beside in names and HEAD not in names else HEAD
