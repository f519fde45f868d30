"""Ranks as processes of this machine, which end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic

import torch

from blockstride.checks import expect
from blockstride.models.distributed.launcher import Launcher, Team
from blockstride.models.distributed.messages import Setup
from blockstride.models.loading import default_device, find_device

WORKER = "blockstride.models.distributed.worker"
END_SECONDS = 10.0
"""How long a process that was killed may take to be gone."""

RANK_DEFAULTS = {
    # threads that spin while they wait take the cores from other ranks; a short look, some 10 us,
    # costs those nothing, and takes a sixth off a small model's decode step
    "GOMP_SPINCOUNT": "1000",
}
"""Environment of every rank, where the user hasn't decided otherwise."""


class LocalTeam(Team):
    """A process a rank.

    Args:
        pipe: To rank 0.
        processes: Of all ranks.
    """

    def __init__(self, pipe: Connection, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._pipe, self._processes = pipe, processes
        self.pids = [process.pid for process in processes]

    def connect(self, seconds: float) -> Connection:
        """See `Team`; there is nothing to wait for."""
        return self._pipe

    def watch(self, on_end: Callable[[], object], on_drain: Callable[[], object]) -> None:
        """See `Team`; pipes end with their processes, whatever these end of."""

    def how_it_ended(self) -> str:
        """See `Team`: exit codes."""
        with suppress(subprocess.TimeoutExpired):
            # a pipe may close a little before its process has ended
            self._processes[0].wait(1.0)
        codes = {rank: process.poll() for rank, process in enumerate(self._processes)}
        return ", ".join(f"rank {rank} exited with {code}" for rank, code in codes.items() if code)

    def wait(self, seconds: float) -> None:
        """See `Team`."""
        deadline = monotonic() + seconds
        for process in self._processes:
            # a signal may have come, and ended up here, within a wait that holds the same lock
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - monotonic()))

    def kill(self) -> None:
        """See `Team`."""
        for process in self._processes:
            process.kill()
        self.wait(END_SECONDS)


class LocalLauncher(Launcher):
    """Starts ranks as processes of this machine. No core is reserved for any."""

    is_local = True

    def __init__(self) -> None:
        self._places = count()

    def deal(self, device: str | None, num_ranks: Sequence[int]) -> list[list[str]]:
        """See `Launcher`; `"cuda"` deals ranks to all GPUs in turn.

        Raises:
            ValueError: A device that isn't there, or a GPU that two ranks of an engine would be on.
        """
        device = str(default_device()) if device is None else device
        find_device(device)
        is_shared = device.startswith("cuda:") and max(num_ranks) > 1
        expect(
            not is_shared, "device", "'cuda', whose GPUs ranks share out, for several ranks", device
        )
        if device != "cuda":
            return [[device] * size for size in num_ranks]
        gpus = torch.cuda.device_count()
        return [[f"cuda:{next(self._places) % gpus}" for _ in range(size)] for size in num_ranks]

    def start(self, setups: Sequence[Setup]) -> LocalTeam:
        """See `Launcher`."""
        pipe, leader = Pipe()
        pipe.send(setups[0])
        ours, theirs = [], []
        for setup in setups[1:]:
            at_leader, at_follower = Pipe()
            at_leader.send(setup)
            ours.append(at_leader)
            theirs.append(at_follower)
        pipes = [[leader, *ours], *([pipe] for pipe in theirs)]
        environment = _environment(len(setups))
        processes = [_start(ends, environment) for ends in pipes]
        # so that each process sees the other end of its pipes close
        for end in (end for ends in pipes for end in ends):
            end.close()
        return LocalTeam(pipe, processes)


def _start(ends: Sequence[Connection], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a rank that has these ends of pipes."""
    numbers = [end.fileno() for end in ends]
    return subprocess.Popen(
        [sys.executable, "-m", WORKER, *map(str, numbers)],
        pass_fds=numbers,
        env=environment,
        stdin=subprocess.DEVNULL,
        # Ctrl-C is for this process, which ends the others
        start_new_session=True,
    )


def _environment(num_ranks: int) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
    defaults = {**RANK_DEFAULTS, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    # what the user has decided stays; the worker imports this package from wherever it is
    return {**defaults, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
