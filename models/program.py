"""What a program owes its shell: open streams, and signals that end it whole and without a word.

Imports nothing that takes time, since a signal may come while everything else is imported.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType

SPIN = "GOMP_SPINCOUNT"
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def take_over() -> None:
    """Makes this process a program: from here on signals end it, and all its streams are open."""
    for number in SIGNALS:
        # a script that starts something in the background has it ignore Ctrl-C, nohup has it
        # ignore the end of its terminal
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    _open_streams()
    _be_brief_at_waits()
    # what is imported stays, so looking for what can go takes a third of a start for nothing
    gc.disable()


def settle() -> None:
    """Ends a start: all that was imported is there to stay, and what comes now may go."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _be_brief_at_waits() -> None:
    """Has threads of OpenMP, which torch loads later, look for work for some 10 us and then sleep.

    By default they spin, and take the cores from whoever works. Sleeping at once costs every short
    step what it takes to wake. What the user has decided stays.
    """
    if not {"OMP_WAIT_POLICY", SPIN} & os.environ.keys():
        os.environ[SPIN] = "1000"


def _end(number: int, _: FrameType | None) -> None:
    """Ends this process now, and what it has begun, with the exit code that shells give a signal.

    Nothing is raised: an exception might arrive in a callback, where Python prints and drops it, or
    halfway through an import. What must end with this process, engines in other processes and their
    folder, is told to `atexit` by whoever begins it.
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    atexit._run_exitfuncs()
    # libraries that are taken down while their threads run may abort
    os._exit(128 + number)


def _open_streams() -> None:
    """Has a stream that the caller closed lead nowhere, and none fail at a character.

    The numbers of closed streams would go to the next files that are opened, and what a library
    says on standard error into these.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free is this one
            os.open(os.devnull, os.O_RDWR)
    # where they are closed Python has none at all
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    # what a terminal has no sign for is spelt, as standard error does anyway
    sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
