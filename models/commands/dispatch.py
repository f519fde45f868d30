"""From what was typed to one of the commands, and from whatever it raises to one sentence."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from blockstride import __version__
from blockstride.models import program
from blockstride.models.commands import compiling, output
from blockstride.models.commands.option_names import MARK, with_options

COMMANDS = {
    "chat": "talk to a model, here or at a server",
    "generate": "continue prompts with a model",
    "layouts": "show how the caches of a model lie in memory, and what they cost",
    "serve": "serve a model to OpenAI's clients over HTTP",
    "plan": "show what moves between a prefill and a decode engine, and how",
    "warm": "compile what models call on this CPU, ahead of their first start",
}
"""Every command is a module of `blockstride.models.commands`, imported when it is called."""

RUN_MODELS = {"chat", "generate", "serve"}
"""Those that begin to compile for their model before they are imported."""

FAILED, REFUSED, INTERRUPTED, READER_GONE = 1, 2, 130, 141
VERBOSE: dict[str, Any] = {"action": "store_true", "help": "say on standard error what happens"}

logger = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        message = message.removeprefix("argument ")
        self.exit(REFUSED, f"{self.prog}: {message}; '{self.prog} --help' lists what there is\n")


def run(argv: Sequence[str]) -> int:
    """Runs one command, and sees to it that all it wrote is written.

    Returns:
        The exit code; see `blockstride.models.cli.main`.
    """
    code = 0
    try:
        code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        code = READER_GONE
        output.close(sys.stdout)
    except OSError as error:
        if code == 0:
            code = FAILED
            output.say(f"blockstride: standard output: {error.strerror}")
        output.close(sys.stdout)
    return code


def _run(argv: Sequence[str]) -> int:
    try:
        args = _parser(argv).parse_args(argv)
    except SystemExit as end:
        # --help, --version, or the sentence has been said
        return int(end.code or 0)
    program.settle()
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("blockstride").setLevel(logging.DEBUG if args.verbose else logging.WARNING)
    try:
        return args.run(args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        compiling.end()
        logger.debug("the command ended by an exception", exc_info=True)
        is_refusal = isinstance(error, ValueError | TypeError) and MARK in str(error)
        sentence = with_options(_sentence(error), _options(args))
        output.say(f"blockstride {args.command}: {sentence}")
        return REFUSED if is_refusal else FAILED


def _parser(argv: Sequence[str]) -> Parser:
    parser = Parser(prog="blockstride", description="Caches of hybrid attention + Mamba models.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--verbose", **VERBOSE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        # only the command that is called pays for its imports
        if name in argv:
            if name in RUN_MODELS:
                compiling.begin(argv)
            module = import_module(f"blockstride.models.commands.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run, option_names=module.option_names)
            # where it wasn't typed behind the command, what was typed before it holds
            sub.add_argument("--verbose", default=argparse.SUPPRESS, **VERBOSE)
    return parser


def _sentence(error: Exception) -> str:
    """What an exception says, in one line."""
    said = " ".join(str(error).split())
    match error:
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case MemoryError():
            return said or "out of memory"
        case OSError() | ValueError() | TypeError() | RuntimeError():
            return said
    return f"{type(error).__name__}: {said}"


def _options(args: argparse.Namespace) -> dict[str, str]:
    """Argument of the library -> what the user types."""
    same = {name: f"--{name.replace('_', '-')}" for name in vars(args)}
    return same | args.option_names(args)
