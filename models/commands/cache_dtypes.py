"""What caches hold, as options of the commands that plan them from a config.json."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from blockstride.checks import FLOATS
from blockstride.dtypes import SHORT, words
from blockstride.layouts import CacheSpec

OPTIONS = {
    "--kv-cache-dtype": f"of keys and values: auto (of config.json), {words()}",
    "--conv-dtype": f"of convolution states: auto (of config.json), {words(FLOATS)}",
    "--ssm-dtype": f"of recurrent states: auto (fp32), {words(FLOATS)}",
}


def add_cache_dtypes(caches: argparse._ActionsContainer) -> None:
    """Declares the options."""
    for option, text in OPTIONS.items():
        caches.add_argument(option, default="auto", help=text)


def add_prefix_caching(caches: argparse._ActionsContainer) -> None:
    """Declares the option."""
    caches.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="compute every prompt from its first token, and keep no states for later ones",
    )


def held_dtypes(specs: Iterable[CacheSpec]) -> dict[str, str]:
    """What caches hold (`k`, `conv`, `ssm`, ...) -> the word for its type."""
    return {
        field.name.partition(".")[0]: SHORT[field.dtype]
        for spec in specs
        for field in spec.page(1).fields
    }


def describe_dtypes(specs: Iterable[CacheSpec]) -> str:
    """Which types are assumed, and where engines have others."""
    held = ", ".join(f"{name} {word}" for name, word in held_dtypes(specs).items())
    first, second, last = OPTIONS
    return (
        f"caches hold {held}; on a CPU `generate` has fp32\n"
        f"({first}, {second} and {last} change what is shown)"
    )
