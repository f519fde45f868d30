"""Compile Triton kernels for a GPU that is not here, exactly as a launch on it would.

A stand-in driver names the target and `JITFunction.run` becomes a compile-only call. The *launcher*
of a kernel is then called with tensors on the `meta` device, so Triton specialises on divisibility
by 16, on ones, on `None` and on every meta-parameter as in production; each launch is recorded with
its grid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True)
class Launch:
    """A launch that a launcher would have made: the compiled kernel, its grid, its keywords."""

    name: str
    grid: tuple[int, ...]
    options: dict[str, Any]
    kernel: Any

    @property
    def num_warps(self) -> int:
        return self.kernel.metadata.num_warps

    @property
    def shared_bytes(self) -> int:
        return self.kernel.metadata.shared


class OfflineDriver:
    """The part of a Triton driver that compilation asks for."""

    def __init__(self, name: str):
        self.target = TARGETS[name]
        # compiled kernels are kept by device number, so each target is a device of its own
        self.device = list(TARGETS).index(name)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


@contextmanager
def recorded_launches(target: str) -> Iterator[list[Launch]]:
    """Compile every launch made in the block for `target` instead of running it."""
    launches: list[Launch] = []
    real_run, real_driver = JITFunction.run, driver._active

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = real_run(self, *args, grid=grid, warmup=True, **kwargs)
        launches.append(Launch(self.__name__, tuple(grid), kwargs, kernel))
        return kernel

    driver.set_active(cast(Any, OfflineDriver(target)))
    JITFunction.run = compile_only
    try:
        yield launches
    finally:
        JITFunction.run = real_run
        driver._active = real_driver


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor with shape and strides and no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "triton": triton.__version__}
