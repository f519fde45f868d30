"""The `blockstride` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from blockstride.models import program


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: What stands behind `blockstride`. None: what this process was started with, which is
            then a program and ends at signals.

    Returns:
        0: it did what was asked.
        1: it failed at that.
        2: what was typed can't be, or a file that it names is not what it should be.
        128 + n: signal n ended it; 141 when whoever read its output has gone.
        With 1 and 2, one sentence on standard error says what went wrong.
    """
    if argv is None:
        program.take_over()
        argv = sys.argv[1:]
    # not before signals are taken care of: torch takes seconds to import
    return import_module("blockstride.models.commands.dispatch").run(argv)


if __name__ == "__main__":
    sys.exit(main())
