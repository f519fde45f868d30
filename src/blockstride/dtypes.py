"""Types by the words that people type and files and messages contain."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockstride.checks import CACHE_DTYPES, expect

SHORT = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "int8",
}


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`, as files and messages have it."""
    return str(dtype).removeprefix("torch.")


DTYPES = {dtype_name(dtype): dtype for dtype in CACHE_DTYPES}
"""Name -> what caches may hold."""

WORDS = DTYPES | {word: dtype for dtype, word in SHORT.items()}
"""`float8_e4m3fn`, and `fp8` as well."""


def words(allowed: Sequence[torch.dtype] = CACHE_DTYPES) -> str:
    """The words for some types, for messages and help."""
    return ", ".join(word for word, dtype in WORDS.items() if dtype in allowed)


def parse_dtype(
    word: str,
    argument: str,
    *,
    allowed: Sequence[torch.dtype] = CACHE_DTYPES,
    auto: torch.dtype | None = None,
) -> torch.dtype:
    """The type that a word stands for.

    Args:
        word: One of `WORDS`, in any case, with or without `torch.` before it.
        argument: What has this value, for messages.
        allowed: The types that it may be.
        auto: What `"auto"` stands for; None where that can't be said.

    Raises:
        ValueError: Another word.
    """
    plain = word.lower().removeprefix("torch.")
    if plain == "auto" and auto is not None:
        return auto
    known = WORDS.get(plain)
    also = "" if auto is None else "auto or "
    expect(known in allowed, argument, f"{also}one of {words(allowed)}", repr(word))
    return WORDS[plain]
