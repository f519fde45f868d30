"""Processes for tests: started together, spoken to one by one, and always killed at the end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ANSWER_SECONDS = 60.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "UCX_NET_DEVICES": "lo",
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}


class Process:
    """A process that runs functions of test modules.

    Args:
        nursery: The process that forks.
        transports: UCX transports that it may use.
    """

    def __init__(self, nursery: socket.socket, transports: str) -> None:
        self._pipe, theirs = Pipe()
        socket.send_fds(nursery, [transports.encode()], [theirs.fileno()])
        theirs.close()
        self.pid = int.from_bytes(nursery.recv(8), "big")

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begins a call."""
        self._pipe.send((function, arguments))

    def result(self, seconds: float = ANSWER_SECONDS) -> Any:
        """What the call that was begun returns, or raises."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"process {self.pid}: no result within {seconds} s")
        right, result = self._pipe.recv()
        if not right:
            raise result
        return result

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.send(function, *arguments)
        return self.result()

    def stop(self) -> None:
        """Stops it where it is, alive."""
        os.kill(self.pid, signal.SIGSTOP)
        self.until_stopped()

    def until_stopped(self, seconds: float = 20.0) -> None:
        """Waits until the system says that it is stopped."""
        end, status = monotonic() + seconds, Path(f"/proc/{self.pid}/stat")
        while status.read_text("ascii").rpartition(")")[2].split()[0] != "T":
            assert monotonic() < end, f"process {self.pid} has not stopped in {seconds} s"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it, and waits until it is gone."""
        if self._pipe.closed:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(EOFError, OSError):
            while self._pipe.poll(ANSWER_SECONDS):
                self._pipe.recv()
        self._pipe.close()


class Crew:
    """Processes that are used again by the next test, those apart that a test has killed."""

    def __init__(self) -> None:
        self._nursery, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.transfer.connector.worker", str(theirs.fileno())]
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("TRITON_INTERPRET", None)
        self._parent = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        self._idle: dict[str, list[Process]] = {}
        self._busy: list[tuple[str, Process]] = []

    def hire(self, count: int, transports: str = "all") -> list[Process]:
        idle = self._idle.setdefault(transports, [])
        while len(idle) < count:
            idle.append(Process(self._nursery, transports))
        hired = [idle.pop(0) for _ in range(count)]
        self._busy += [(transports, process) for process in hired]
        return hired

    def dismiss(self, reset: Callable[[], None]) -> None:
        """Takes all back; who can't reset itself is killed."""
        # readers are hired last, and say goodbye to producers
        for transports, process in reversed(self._busy):
            try:
                process.resume()
                process.call(reset)
            except (OSError, EOFError, RuntimeError, TimeoutError):
                process.kill()
            else:
                self._idle[transports].append(process)
        self._busy.clear()

    def kill(self) -> None:
        """Ends all: forks die with their parent."""
        self._parent.kill()
        self._parent.wait()
        self._nursery.close()
