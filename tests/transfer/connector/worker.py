"""Processes of a test: one that has imported everything, and its forks, which do what they're told.

python -m tests.transfer.connector.worker FD

A fork is asked for over the socket FD, with the end of a pipe; it gets calls over that pipe until
it closes. Forks are killed with their parent, and that ends with whoever holds the other end of FD.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
MAX_TRANSPORTS = 100

STATE: dict[str, Any] = {}
"""What the functions that run here keep between two calls."""


def serve(connection: Connection) -> NoReturn:
    """Runs what comes."""
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:  # whoever called has ended
            os._exit(0)
        try:
            connection.send((True, function(*arguments)))
        except Exception as error:
            traceback.print_exc()
            connection.send((False, error))


def main(control: socket.socket) -> NoReturn:
    """Forks whenever it is asked to."""
    faulthandler.enable()
    # not NIXL, which does not survive a fork
    import_module("tests.transfer.connector.roles")
    import_module("blockstride.transfer.connector.staging").load_programs()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        transports, pipes, *_ = socket.recv_fds(control, MAX_TRANSPORTS, 1)
        if not transports:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            os.environ["UCX_TLS"] = transports.decode()
            serve(Connection(pipes[0]))
        os.close(pipes[0])
        control.send(pid.to_bytes(8, "big"))


if __name__ == "__main__":
    # what is pickled by this module's name must be this module
    sys.modules["tests.transfer.connector.worker"] = sys.modules["__main__"]
    main(socket.socket(fileno=int(sys.argv[1])))
