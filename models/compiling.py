"""Which programs a model will call, guessed from its config before anything heavy is imported."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from blockstride.kernels import CompileAhead

ALWAYS = ("norm", "cache", "mlp", "common")
SIGNS = {
    "attention": r'"num_attention_heads"|"num_heads"',
    "mamba1": r'"model_type": "(jamba|mamba|falcon_mamba)"',
    "mamba2": r'"(mamba_n_heads|mamba_num_heads|n_mamba_heads)"|"model_type": "mamba2"',
    "delta": r'"linear_num_key_heads"|kimi_linear',
    "lru": r'"lru_width"',
    "conv": r'"(conv_L_cache|linear_num_key_heads|lru_width)"|kimi_linear|mamba',
}
"""Room of kernels -> what a config of a model that calls it says somewhere.

A wrong guess costs time and nothing else: what wasn't compiled ahead is compiled when it is called.
"""

_BEGUN: dict[tuple[str, ...], CompileAhead] = {}
"""What a command has begun, for the model that it will make; rooms -> their programs."""

logger = logging.getLogger(__name__)


def rooms_of(config: Mapping[str, Any]) -> list[str]:
    """The rooms of kernels whose programs a model will probably call."""
    text = json.dumps(config)
    return [*ALWAYS, *(room for room, sign in SIGNS.items() if re.search(sign, text))]


def begin_compiling(config: Mapping[str, Any], *, may_help: bool = True) -> CompileAhead:
    """Begins to compile what a model on a CPU will call and isn't compiled yet.

    Args:
        config: Its parsed config.json.
        may_help: Whether this process will do its part too, and so is left a core.
    """
    rooms = tuple(rooms_of(config))
    if rooms not in _BEGUN:
        _BEGUN[rooms] = ahead = CompileAhead(rooms)
        if ahead.missing:
            logger.info("%d programs are to be compiled for this CPU", len(ahead.missing))
            ahead.start(max(1, num_cores() - may_help))
    return _BEGUN[rooms]


@contextmanager
def compiled_beside(
    config: Mapping[str, Any], device: object, *, is_here: bool, is_local: bool = True
) -> Iterator[CompileAhead]:
    """Programs are compiled while the block runs, if it makes engines on CPUs of this machine.

    Args:
        config: See `begin_compiling`.
        device: Where the engines run; None for a GPU where there is one.
        is_here: Whether it is one engine in this process.
        is_local: Whether all are on this machine.

    Yields:
        What is compiled, which may be nothing.
    """
    # torch is asked where nobody says, which is here and not when this module is imported
    kind = device or import_module("blockstride.models.loading").default_device()
    if not is_local or not str(kind).startswith("cpu"):
        yield CompileAhead(())
        return
    ahead = begin_compiling(config, may_help=is_here)
    try:
        yield ahead
    finally:
        _BEGUN.pop(tuple(rooms_of(config)), None)
        ahead.close()


def num_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
