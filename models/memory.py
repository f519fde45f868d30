"""How much memory a device has left, and whether something fits in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from blockstride.checks import expect

MIB = 1 << 20
MACHINE, OWN_GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where the two versions of control groups say what a group may have, has, and can drop."""


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
    return max(0, min(*limits, *_left_in_groups()))


def _left_in_groups() -> Iterator[int]:
    """What each control group that this process is in leaves it: a container is one."""
    with suppress(OSError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            top, most, used, dropped = FILES["memory" in controllers.split(",")]
            group = Path(path.lstrip("/"))
            # a container may see its own group as the top one, whatever it is called outside
            for folder in {GROUPS / top / each for each in (group, *group.parents)}:
                # "max" where there is no limit
                with suppress(OSError, ValueError):
                    limit = int((folder / most).read_text())
                    lines = (folder / "memory.stat").read_text().splitlines()
                    stat = (each.split() for each in lines)
                    files = {name: int(value) for name, value in stat}.get(dropped, 0)
                    yield limit - int((folder / used).read_text()) + files


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
