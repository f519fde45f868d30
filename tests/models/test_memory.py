"""What a machine and its containers leave a process."""

import pytest
import torch

from blockstride.models import memory

CPU = torch.device("cpu")
MIB = 1 << 20


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine with 900 MiB left, and no control groups yet."""
    (tmp_path / "meminfo").write_text(f"MemAvailable: {900 << 10} kB\nSwapFree: 0 kB\n")
    monkeypatch.setattr(memory, "MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    return tmp_path


def write(folder, limit, used: int, dropped: int, version: int = 2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {dropped * MIB}\n")


def test_without_groups_the_machine_decides(groups):
    assert memory.available_bytes(CPU) == 900 * MIB
    (groups / "own").write_text("0::/\n")
    write(groups, "max", 100, 0)
    assert memory.available_bytes(CPU) == 900 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_leaves_what_it_does_not_use_but_for_files(groups, version):
    (groups / "own").write_text("0::/a/b\n" if version == 2 else "7:cpu:/\n4:hugetlb,memory:/a/b\n")
    top = groups if version == 2 else groups / "memory"
    write(top / "a" / "b", 500 * MIB, 300, 50, version)
    assert memory.available_bytes(CPU) == 250 * MIB
    # one that it lies in has less
    write(top / "a", 600 * MIB, 500, 0, version)
    assert memory.available_bytes(CPU) == 100 * MIB
    # a container sees its own as the top one
    write(top, 400 * MIB, 399, 0, version)
    assert memory.available_bytes(CPU) == MIB


def test_a_group_that_is_full_leaves_nothing(groups):
    (groups / "own").write_text("0::/a\n")
    write(groups / "a", 100 * MIB, 120, 0)
    assert memory.available_bytes(CPU) == 0
    with pytest.raises(ValueError, match=r"^cache_bytes: expected at most 0 MiB, which cpu has"):
        memory.expect_room("cache_bytes", 1, CPU)
