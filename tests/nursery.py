"""Processes of tests, forked from one that has imported what they need: that takes seconds each.

python -m tests.nursery FD MODULE ...

The nursery imports the modules and forks whenever it is asked to over the socket FD. What it forks
is handed to the process that asked, as a child of its own, and so are its exit code and its end.
"""

import ctypes
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36
MAX_BYTES, MAX_FILES = 1 << 20, 64
# importing takes long where many do
SECONDS = 120.0


class Nurseries:
    """One for each environment, since libraries read theirs as they are loaded.

    Args:
        modules: What they import.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._sockets: dict[frozenset[tuple[str, str]], socket.socket] = {}
        self._stack = ExitStack()

    def popen(self, command: Sequence[str], **options: Any) -> "Forked":
        """What `subprocess.Popen` is asked for: `python -m MODULE`, in a session of its own."""
        return Forked(self, command, **options)

    def ask(self, environment: dict[str, str]) -> socket.socket:
        """Where the nursery of an environment is asked for forks."""
        of_test = {"PYTEST_CURRENT_TEST": ""}
        key = frozenset({**environment, **of_test}.items())
        if key not in self._sockets:
            # what it forks is an orphan at once, and comes here
            assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.settimeout(SECONDS)
            command = [sys.executable, "-m", "tests.nursery", str(theirs.fileno()), *self._modules]
            with theirs:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    # Ctrl-C is for the process of the tests; this one ends with it
                    start_new_session=True,
                )
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
            self._sockets[key] = self._stack.enter_context(ours)
        return self._sockets[key]

    def close(self) -> None:
        """Ends them, and none of what they have forked."""
        self._stack.close()


class Forked(subprocess.Popen):
    """A fork of a nursery; all but how it begins is that of any other process."""

    def __init__(self, nurseries: Nurseries, command: Sequence[str], **options: Any) -> None:
        assert options.pop("start_new_session"), "a fork has a session of its own"
        assert command[:2] == [sys.executable, "-m"]
        self._nurseries = nurseries
        super().__init__(command, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        # after three arguments for other systems, both ends of each pipe; -1 is the caller's own
        pipes = more[3:9]
        streams = [file if file >= 0 else i for i, file in enumerate((pipes[0], *pipes[3::2]))]
        nursery = self._nurseries.ask(env)
        call = pickle.dumps((os.getpid(), os.getcwd(), env, args[2:], tuple(pass_fds)))
        socket.send_fds(nursery, [call], [*streams, *pass_fds])
        self.pid = int(nursery.recv(MAX_BYTES))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyright: ignore[reportAttributeAccessIssue]


def run(parent: int, folder: str, environment: dict[str, str], command: list[str]) -> NoReturn:
    """What a fork does, once the process that asked for it has it: `main` of a module."""
    while os.getppid() != parent:
        sleep(0.001)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = import_module(command[0]).main(command[1:])
    sys.stderr.flush()
    os._exit(code)


def fork(control: socket.socket, call: bytes, files: list[int]) -> None:
    """Forks a fork, which is an orphan as soon as it has said who it is."""
    if (pid := os.fork()) != 0:
        os.waitpid(pid, 0)
        return
    if (pid := os.fork()) != 0:
        control.send(str(pid).encode())
        os._exit(0)
    control.close()
    os.setsid()
    parent, folder, environment, command, numbers = pickle.loads(call)
    for i in range(3):
        os.dup2(files[i], i)
        os.close(files[i])
    # what it is told of as numbers has others here
    renamed = {str(n): str(file) for n, file in zip(numbers, files[3:], strict=True)}
    words: list[str] = command
    run(parent, folder, environment, [renamed.get(word, word) for word in words])


def main(control: socket.socket, modules: Sequence[str]) -> None:
    """Forks until the other end of the socket is closed."""
    for module in modules:
        import_module(module)
    for call, files in iter(partial(_receive, control), (b"", [])):
        fork(control, call, files)
        for file in files:
            os.close(file)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    call, files, *_ = socket.recv_fds(control, MAX_BYTES, MAX_FILES)
    return call, files


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
