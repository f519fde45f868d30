"""Compiling programs before they are called, by processes beside this one.

numba compiles one program at a time in a process. Each process here is given the same names and
takes those that are neither there nor being compiled by another, so whoever comes to need one waits
for it at most, and two models that start at once share the work.

This module imports neither torch nor numba: a start can begin to compile before it imports those.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread

from blockstride.kernels.common.cpu.code_cache import CodeFile, cache_folder
from blockstride.kernels.common.cpu.machine_code import compile_program

KERNELS = Path(__file__).parents[2]
PACKAGE = "blockstride.kernels"
ROOMS = (
    "attention",
    "delta",
    "mlp",
    "mamba1",
    "lru",
    "mamba2",
    "conv",
    "norm",
    "cache",
    "common",
)
"""Kinds of operations, those whose programs take longest first."""

PROGRAM = re.compile(r"^@Program\ndef (\w+)\(", re.MULTILINE)
DEADLINE_SECONDS = 600.0


def programs_of(rooms: Iterable[str]) -> list[str]:
    """Full names of the programs of some rooms, in the order of `ROOMS`.

    Raises:
        ValueError: No such room.
    """
    wanted = set(rooms)
    if unknown := wanted - {*ROOMS}:
        raise ValueError(f"rooms: expected some of {', '.join(ROOMS)}, got {sorted(unknown)}")
    return [
        f"{PACKAGE}.{room}.cpu.{source.stem}.{name}"
        for room in ROOMS
        if room in wanted
        for source in sorted((KERNELS / room / "cpu").glob("*.py"))
        for name in PROGRAM.findall(source.read_text("utf-8"))
    ]


class CompileAhead:
    """The programs of some rooms that aren't compiled yet, and the processes that do that.

    The processes end when all is compiled, with this one, or when they are closed.

    Args:
        rooms: Kinds of operations, of `ROOMS`.

    Attributes:
        names: The programs of these rooms.
        missing: Those that weren't compiled when this was made.
        folder: Where they are kept; None where nothing can be.
    """

    def __init__(self, rooms: Iterable[str] = ROOMS) -> None:
        self.names, self.folder = programs_of(rooms), cache_folder()
        self._files = {name: _file_of(name) for name in self.names}
        self.missing = [name for name, file in self._files.items() if not file.is_there]
        self._workers: list[subprocess.Popen[bytes]] = []

    def left(self) -> list[str]:
        """Those that still aren't compiled."""
        return [name for name in self.missing if not self._files[name].is_there]

    def start(self, processes: int) -> None:
        """Begins to compile what is missing, where that can be kept.

        Args:
            processes: How many processes at most; as many as there are programs for.
        """
        # where nobody says what Python this is, the programs are compiled when they are called
        if self._workers or self.folder is None or not sys.executable:
            return
        line = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *self.missing]
        for _ in range(min(processes, len(self.missing))):
            with suppress(OSError):
                worker = subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # what a terminal sends is for the process that ends them
                    start_new_session=True,
                )
                self._workers.append(worker)

    def help(self) -> None:
        """Compiles here what is missing and no other process has begun with."""
        if self.left():
            compile_each(self.missing)

    def wait(self, seconds: float = DEADLINE_SECONDS) -> bool:
        """Waits until the processes have ended; whether all is compiled then."""
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, deadline - time.monotonic()))
        self.close()
        return not self.left()

    def close(self) -> None:
        """Ends the processes, which leave nothing half done behind."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._workers = []


def compile_each(names: Sequence[str]) -> None:
    """Compiles those of some programs that are neither there nor being compiled."""
    for name in names:
        file = _file_of(name)
        if file.is_there:
            continue
        with file.lock(0.0) as is_ours:
            if is_ours and file.read() is None:
                module, _, function = name.rpartition(".")
                program = getattr(import_module(module), function)
                file.write(compile_program(program.function))


def _file_of(name: str) -> CodeFile:
    room = name.removeprefix(f"{PACKAGE}.").partition(".")[0]
    return CodeFile(KERNELS / room / "cpu", name)


def main() -> None:
    """What a process does: it compiles what is named on its command line."""
    # its input ends with the process that started it
    Thread(target=_end_with_input, daemon=True).start()
    compile_each(sys.argv[1:])


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
