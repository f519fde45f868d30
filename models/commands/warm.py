"""`blockstride warm`: compile ahead what models call on this CPU."""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from blockstride.kernels import CompileAhead
from blockstride.models.commands import compiling
from blockstride.models.commands.output import say, write
from blockstride.models.compiling import num_cores, rooms_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--model", help="only what this checkpoint calls; all there is without it")


def option_names(_: argparse.Namespace) -> dict[str, str]:
    """What the user types, for arguments of other names."""
    return {}


def run(args: argparse.Namespace) -> int:
    """Compiles what isn't compiled yet, and says how much that was.

    Returns:
        1 if anything is left, since it can't be kept, else 0.
    """
    ahead = CompileAhead() if args.model is None else CompileAhead(rooms_of(_config(args.model)))
    begin = time.perf_counter()
    if ahead.missing:
        notice = compiling.Notice(ahead)
        try:
            ahead.start(num_cores())
            ahead.wait()
        finally:
            notice.stop()
    seconds, left = time.perf_counter() - begin, ahead.left()
    there = len(ahead.names) - len(ahead.missing)
    done = f"{len(ahead.missing) - len(left)} programs compiled in {seconds:.1f} s"
    write(f"{done}, {there} were there; kept in {ahead.folder}\n")
    if left:
        say(
            f"blockstride warm: expected to keep all programs, got {', '.join(left)} without a file"
        )
    return int(bool(left))


def _config(model: str) -> dict[str, Any]:
    """The config.json of a checkpoint that may be named as on the Hub.

    Raises:
        ValueError: There is none.
    """
    folder = Path(model)
    if not (folder / "config.json").is_file():
        # not for a folder: it takes torch, and with that seconds
        folder = import_module("blockstride.models.hub").find_checkpoint(model)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ValueError(f"model: expected a config.json in {folder}, got {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"config.json: expected a JSON object, got {type(config).__name__}")
    return config
