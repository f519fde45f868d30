"""Which implementation of a kernel a tensor gets: Triton, or the one for CPUs."""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

# read once: Triton itself decides at decoration time whether a kernel is interpreted
INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_on_triton(tensor: Tensor) -> bool:
    """True for tensors that aren't on a CPU, and for all tensors under `TRITON_INTERPRET=1`."""
    # a program for CPUs would read and write at the addresses of others, or at address 0
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
    function = getattr(import_module(package), name)
    return on_its_device(function) if on_triton and torch.cuda.is_available() else function


def on_its_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called while the GPU of its first tensor is the current one.

    Triton launches on the current device, whatever the tensors are on.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tensor = next(arg for arg in args if isinstance(arg, Tensor))
        # a CPU's tensors have no device to change to
        with torch.cuda.device(tensor.device if tensor.is_cuda else -1):
            return function(*args, **kwargs)

    return run
