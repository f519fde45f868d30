"""Which implementation of a kernel a tensor gets: Triton, or the one for CPUs."""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

# read once: Triton itself decides at decoration time whether a kernel is interpreted
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_on_triton(tensor: Tensor) -> bool:
    """True for tensors that aren't on a CPU, and for all tensors under `TRITON_INTERPRET=1`."""
    return INTERPRET or not tensor.is_cpu


@cache
def implementation(module: str, name: str, on_triton: bool) -> Callable[..., Any]:
    """The function behind a public one, imported with its compiler at the first call.

    Args:
        module: The module of `kernels.cpu` that has it; `kernels.gpu` has all.
        name: The function, called as the public one.
        on_triton: What `runs_on_triton` says.
    """
    # an import statement in the function would cost a microsecond at every call
    package = "blockstride.kernels.gpu" if on_triton else f"blockstride.kernels.cpu.{module}"
    return getattr(import_module(package), name)
