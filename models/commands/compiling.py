"""A word on standard error while programs are compiled, which takes seconds and is done once."""

from __future__ import annotations

import argparse
import atexit
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from blockstride.kernels import CompileAhead
from blockstride.models.commands.output import say
from blockstride.models.compiling import begin_compiling

GPU = Path("/dev/nvidiactl")
LOOKS_A_SECOND = 8


class Notice:
    """What is seen while programs are compiled: on a terminal how many are left, else one line.

    Args:
        ahead: The programs.
    """

    def __init__(self, ahead: CompileAhead) -> None:
        self._ahead = ahead
        self._spinner = Spinner("dots")
        console = Console(stderr=True)
        self._live = Live(
            get_renderable=self._look,
            console=console,
            refresh_per_second=LOOKS_A_SECOND,
            transient=True,
            # what is written meanwhile goes where it is meant to
            redirect_stdout=False,
            redirect_stderr=False,
        )
        if console.is_terminal:
            # it hides the cursor, also from whoever comes after a signal
            atexit.register(self.stop)
            self._live.start()
        else:
            say(f"blockstride: {describe(len(ahead.missing))}")

    def _look(self) -> Spinner:
        done = len(self._ahead.missing) - len(self._ahead.left())
        self._spinner.update(text=f"{describe(len(self._ahead.missing))}: {done} done")
        return self._spinner

    def stop(self) -> None:
        """Leaves the terminal as it was."""
        self._live.stop()
        atexit.unregister(self.stop)


_shown: list[Notice] = []


def describe(count: int) -> str:
    """What happens, in words."""
    return f"compiling {count} programs for this CPU, which is done once"


def begin(argv: Sequence[str]) -> None:
    """Begins to compile what the model of a command line will call, and says so, if there is any.

    That is a guess, made before torch is imported; whatever is wrong is told later, by those that
    know.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--model", default="")
    parser.add_argument("--device", default="cpu" if not GPU.exists() else "cuda")
    parser.add_argument("--tp", default="1")
    parser.add_argument("--prefill")
    parser.add_argument("--decode")
    with suppress(argparse.ArgumentError, OSError, ValueError):
        args, _ = parser.parse_known_args(argv)
        if not args.model or not args.device.startswith("cpu"):
            return
        config = json.loads(Path(args.model, "config.json").read_text("utf-8-sig"))
        is_here = args.tp == "1" and args.prefill is None and args.decode is None
        ahead = begin_compiling(config, may_help=is_here)
        if ahead.missing:
            _shown.append(Notice(ahead))


def end() -> None:
    """Shows nothing any more."""
    while _shown:
        _shown.pop().stop()
