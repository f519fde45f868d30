"""Files appear whole or not at all, whoever writes them at once and whoever dies at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockstride.transfer import CostModel, atomic_file
from blockstride.transfer.atomic_file import PARTIAL, PartialFile, remove_stale, write_atomically

ROOT = Path(__file__).resolve().parents[2]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def age(path: Path, seconds: float = 3600.0) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a"
    for content in (b"first", b"", b"second" * 1000):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert names(tmp_path) == ["a"]


def test_two_writers_of_one_file_have_names_of_their_own_and_the_last_one_wins(tmp_path):
    path = tmp_path / "a"
    first, second = PartialFile(path), PartialFile(path)
    assert first.partial != second.partial
    for file, content in ((first, b"first"), (second, b"second")):
        os.write(file.descriptor, content)
    second.publish()
    assert path.read_bytes() == b"second"
    with path.open("rb") as reader:
        first.publish()
        assert reader.read() == b"second"
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"before")

    def refuse(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert names(tmp_path) == ["a"]


def test_content_is_on_disk_before_it_has_its_name_and_the_name_before_the_call_returns(
    tmp_path, monkeypatch
):
    done, sync, rename = [], os.fsync, os.replace

    def fsync(descriptor):
        done.append("folder" if os.path.isdir(f"/dev/fd/{descriptor}") else "content")
        sync(descriptor)

    def replace(*names):
        done.append("name")
        rename(*names)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "a", b"content")
    assert done == ["content", "name", "folder"]


def test_what_a_dead_writer_left_is_removed_by_the_next_one_in_the_folder(tmp_path):
    dead, alive, fresh = (PartialFile(tmp_path / name) for name in ("dead", "alive", "fresh"))
    ours = tmp_path / "report.partial"
    ours.write_bytes(b"somebody else's file, of a similar name")
    for path in (dead.partial, alive.partial, ours):
        age(path)
    dead.close()
    fresh.close()
    write_atomically(tmp_path / "next", b"")
    # one that has a lock lives; one that has none yet may be about to lock its file
    assert names(tmp_path) == sorted(
        ["next", "report.partial", alive.partial.name, fresh.partial.name]
    )
    alive.publish()
    assert (tmp_path / "alive").exists()


def test_a_file_that_was_removed_is_not_joined_and_one_being_made_whole_neither(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        PartialFile(path, "save 1", join=True)
    made = PartialFile(path, "save 1")
    with pytest.raises(FileExistsError):
        PartialFile(path, "save 1")
    joined = PartialFile(path, "save 1", join=True)
    with pytest.raises(ValueError, match="every other writer to have closed it"):
        made.keep_others_out()
    joined.close()
    made.keep_others_out()
    with pytest.raises(ValueError, match="which is being made whole"):
        PartialFile(path, "save 1", join=True)
    # to others as well: a sealed file has lost its temporary name
    made.publish()
    with pytest.raises(FileNotFoundError):
        PartialFile(path, "save 1", join=True)


def test_a_file_system_without_locks_still_gets_whole_files(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(atomic_file.fcntl, "flock", flock)
    write_atomically(tmp_path / "a", b"content")
    dead = PartialFile(tmp_path / "b")
    dead.close()
    age(dead.partial)
    # nobody can tell whether it is in use
    remove_stale(tmp_path)
    assert names(tmp_path) == ["a", dead.partial.name]


def test_a_cost_model_is_written_whole(tmp_path, monkeypatch):
    path = tmp_path / "cost_model.json"
    CostModel(source="old").save(path)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        CostModel(source="new").save(path)
    assert CostModel.load(path).source == "old"
    assert not [name for name in names(tmp_path) if PARTIAL.fullmatch(name)]


def test_two_writers_and_a_reader_killed_at_random_never_meet_a_mixture():
    command = [sys.executable, "-m", "tests.transfer.killed_writers", "--kills", "100"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 killed" in done.stdout
