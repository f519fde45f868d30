"""The processes of one engine: how the front end starts them, talks to them and ends them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from msgspec.structs import replace

from blockstride.models.distributed.messages import Close, Setup
from blockstride.models.distributed.pipes import Inbox, Outbox

WORKER = "blockstride.models.distributed.worker"
CLOSE_SECONDS = 10.0


class EngineDiedError(RuntimeError):
    """No engine is left that could do what was asked."""


@dataclass(eq=False)
class EngineProcesses:
    """One process a rank. No core is reserved for any, and none spins while it waits.

    Args:
        setup: What rank 0 is; the others differ in rank and device.
        devices: Where each rank runs.

    Attributes:
        requests: Ids of those that the engine works on.
        is_alive: Whether it may be asked for anything.
    """

    setup: Setup
    devices: Sequence[str]
    requests: set[int] = field(default_factory=set)
    is_alive: bool = True
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _pipe: Connection | None = None
    _outbox: Outbox | None = None

    @property
    def engine_id(self) -> str:
        """Its name."""
        return self.setup.engine_id

    @property
    def pids(self) -> list[int]:
        """Process of each rank."""
        return [process.pid for process in self._processes]

    def start(self, inbox: Inbox) -> None:
        """Starts all ranks; what rank 0 says goes to an inbox."""
        self._pipe, leader = Pipe()
        self._pipe.send(self.setup)
        ours, theirs = [], []
        for rank in range(1, len(self.devices)):
            at_leader, at_follower = Pipe()
            at_leader.send(replace(self.setup, rank=rank, device=self.devices[rank]))
            ours.append(at_leader)
            theirs.append(at_follower)
        pipes = [[leader, *ours], *([pipe] for pipe in theirs)]
        environment = self._environment()
        for ends in pipes:
            numbers = [end.fileno() for end in ends]
            command = [sys.executable, "-m", WORKER, *map(str, numbers)]
            self._processes.append(
                subprocess.Popen(
                    command,
                    pass_fds=numbers,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C is for this process, which ends the others
                    start_new_session=True,
                )
            )
        # so that each process sees the other end of its pipes close
        for end in (end for ends in pipes for end in ends):
            end.close()
        self._outbox = Outbox(self._pipe)
        inbox.listen(self, self._pipe)

    def _environment(self) -> dict[str, str]:
        threads = max(1, len(os.sched_getaffinity(0)) // len(self.devices))
        defaults = {
            "OMP_NUM_THREADS": str(threads),
            # threads that spin while they wait take the cores from other ranks; a short look, some
            # 10 us, costs those nothing, and takes a sixth off a small model's decode step
            "GOMP_SPINCOUNT": "1000",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        # what the user has decided stays; the worker imports this package from wherever it is
        return {**defaults, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def tell(self, message: Any) -> None:
        """Sends a message to rank 0, without waiting until it is received."""
        if self.is_alive:
            assert self._outbox is not None, "it was started"
            self._outbox.put(message)

    def how_it_ended(self) -> str:
        """The exit codes of its processes, in words."""
        with suppress(subprocess.TimeoutExpired):
            # a pipe may close a little before its process has ended
            self._processes[0].wait(1.0)
        codes = {rank: process.poll() for rank, process in enumerate(self._processes)}
        ended = [f"rank {rank} exited with {code}" for rank, code in codes.items() if code]
        return ", ".join(ended) or "it doesn't answer"

    def kill(self) -> None:
        """Ends all its processes now."""
        self.is_alive = False
        for process in self._processes:
            process.kill()
        for process in self._processes:
            # a signal may have come, and ended up here, within a wait that holds the same lock
            with suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_SECONDS)
        if self._outbox is not None:
            self._outbox.close()
        # the threads that use it end with the processes
        self._pipe = None

    def close(self) -> None:
        """Asks it to end, and ends it if it doesn't."""
        if self.is_alive and self._pipe is not None:
            self.tell(Close())
            deadline = monotonic() + CLOSE_SECONDS
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - monotonic()))
        self.kill()
