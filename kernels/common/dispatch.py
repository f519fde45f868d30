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
def implementation(public: Callable[..., Any], on_triton: bool) -> Callable[..., Any]:
    """What stands behind a public function, imported with its compiler at the first call.

    It has the public one's name and parameters, and lies in `gpu/` or `cpu/` beside it.

    Args:
        public: The public function.
        on_triton: What `runs_on_triton` says.
    """
    # an import statement in the function would cost a microsecond at every call
    room = public.__module__.rpartition(".")[0]
    function = getattr(import_module(f"{room}.{'gpu' if on_triton else 'cpu'}"), public.__name__)
    return on_its_device(function) if on_triton and torch.cuda.is_available() else function


def on_its_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called while the GPU of its first tensor is the current one.

    Triton launches on the current device, whatever the tensors are on.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tensor = next(arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor))
        # a CPU's tensors have no device to change to
        with torch.cuda.device(tensor.device if tensor.is_cuda else -1):
            return function(*args, **kwargs)

    return run
