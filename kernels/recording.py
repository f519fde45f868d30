"""Recording what a function launches, to launch it again without the Python.

A GPU keeps it as a CUDA graph, a CPU as a list of programs. Either reads and writes the memory that
it had when it was recorded, so what changes is put there before it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch

from blockstride.kernels.common.dispatch import INTERPRET


@runtime_checkable
class Recording(Protocol):
    """What a function launched, and where it left its result."""

    def replay(self) -> Any:
        """Launch it again.

        Returns:
            The function's result, in the same memory at every replay.

        Raises:
            ValueError: On a CPU, a program found an id that lies outside of its pool.
        """
        ...


@runtime_checkable
class Recorder(Protocol):
    """What makes recordings that share memory: only one of them may run at a time."""

    def record(self, run: Callable[[], Any]) -> tuple[Recording | None, str]:
        """Call a function, on a GPU several times, and keep what it launches.

        Args:
            run: The function. It does the same whatever the values are that it reads, and returns
                tensors that it made.

        Returns:
            The recording; or None, and what it does that can't be recorded.
        """
        ...


def recorder(device: torch.device | str) -> Recorder | None:
    """What records on a device; None where nothing does, as in Triton's interpreter.

    Args:
        device: Where everything that is recorded runs.
    """
    device = torch.device(device)
    if device.type == "cpu" and not INTERPRET:
        return import_module("blockstride.kernels.common.cpu.recording").CpuRecorder()
    if device.type == "cuda":
        return import_module("blockstride.kernels.common.gpu.recording").CudaRecorder(device)
    return None
