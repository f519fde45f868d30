"""What NIXL can't see of a device: its streams, each thread's current one, and how memory was made.

NIXL moves bytes whatever kernels are still running. So whoever posts, or lets others post, waits
for the device first (`wait_for_device`), where blocks are read as well as where they are filled: a
block that was freed in the middle of a step may still be written by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from blockstride.checks import expect
from blockstride.transfer.argument_types import expect_type

CPU = torch.device("cpu")


def expect_storages(storages: object) -> None:
    """Raises `TypeError` for anything but tensors by the numbers of their pools."""
    expect_type(storages, "pools", Mapping)
    assert isinstance(storages, Mapping), "checked above"
    for pool, storage in storages.items():
        expect_type(pool, "pools", int)
        expect_type(storage, f"pool {pool}", Tensor)


def device_of(storages: Mapping[int, Tensor]) -> torch.device:
    """Where storages are; nowhere is the CPU.

    Raises:
        ValueError: Memory on several devices.
    """
    devices = {storage.device for storage in storages.values()}
    expect(len(devices) <= 1, "pools", "memory of one device", devices)
    return next(iter(devices), CPU)


def wait_for_device(device: torch.device) -> None:
    """Returns once a device has done all that was asked of it so far, on whatever stream."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def use_device(device: torch.device) -> None:
    """Makes a device the current one of the calling thread, which begins on device 0."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """The same inside of a `with`, for threads that belong to others."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def expect_shareable(storages: Mapping[int, Tensor]) -> None:
    """Raises `ValueError` for memory of a GPU that other processes can't map.

    PyTorch maps expandable segments piece by piece; cuda_ipc, by which UCX reaches another process,
    shares whole allocations only.
    """
    if device_of(storages).type != "cuda":
        return
    segments = [
        range(segment["address"], segment["address"] + segment["total_size"])
        for segment in torch.cuda.memory_snapshot()
        if segment.get("is_expandable")
    ]
    for pool, storage in storages.items():
        apart = not any(storage.data_ptr() in segment for segment in segments)
        wanted = "memory that cuda_ipc can share (set PYTORCH_CUDA_ALLOC_CONF without "
        got = "expandable segments"
        expect(apart, f"pool {pool}", f"{wanted}expandable_segments:True)", got)
