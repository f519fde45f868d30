"""The `blockstride` command."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module

from blockstride import __version__

COMMANDS = {
    "generate": "continue prompts with a model",
    "layouts": "show how the caches of a model lie in memory, and what they cost",
    "plan": "show what moves between a prefill and a decode engine, and how",
    "train": "train a small hybrid on a text",
}
"""Every command is a module of `blockstride.models.commands`, imported when it is called."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 when it did what was asked, 2 when something about the input is wrong: one sentence on
        standard error then says what was expected and what came. 130 when interrupted.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="blockstride", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--verbose", action="store_true", help="log what happens")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        # only the command that is called pays for its imports
        if name in argv:
            module = import_module(f"blockstride.models.commands.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.WARNING)
    try:
        return args.run(args)
    except (ValueError, TypeError, OSError) as error:
        if args.verbose:
            raise
        sys.stderr.write(f"blockstride {args.command}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
