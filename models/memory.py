"""How much memory a device has left, and whether something fits in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from blockstride.checks import expect

MIB = 1 << 20
MACHINE, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def available_bytes(device: torch.device) -> int:
    """What can still be allocated on a device, as far as this process can tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):
        lines = (line.split() for line in MACHINE.read_text().splitlines())
        sizes = {words[0]: int(words[1]) << 10 for words in lines}
        limits.append(sizes.get("MemAvailable:", limits[0]) + sizes.get("SwapFree:", 0))
    # "max" where a container has all of the machine
    with suppress(OSError, ValueError):
        limits.append(int(GROUP.read_text()))
    return min(limits)


def expect_room(name: str, needed: int, device: torch.device) -> None:
    """Raise `ValueError` unless a device has so many bytes left.

    An allocation doesn't tell: a CPU's memory is mapped when it is first written, and who writes
    more than there is gets killed.

    Args:
        name: What asks for them.
        needed: Bytes.
        device: Where.
    """
    free = available_bytes(device)
    room = f"at most {free // MIB:,} MiB, which {device} has left"
    expect(needed <= free, name, room, f"{-(-needed // MIB):,} MiB")
