"""Programs are found, shared among processes and compiled before anybody calls them."""

import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

from blockstride.kernels import CompileAhead
from blockstride.kernels.common.cpu import ahead, code_cache
from blockstride.kernels.common.cpu.code_cache import CodeFile
from blockstride.kernels.common.cpu.native import Program
from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = pytest.mark.skipif(INTERPRET, reason="the interpreter replaces the compiled loops")

# the room that takes shortest
ROOM = ("mlp",)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path))
    return tmp_path / "programs"


def test_every_program_of_the_kernels_is_found():
    found = {
        f"{program.function.__module__}.{program.function.__name__}"
        for source in ahead.KERNELS.glob("*/cpu/*.py")
        for program in vars(
            import_module(f"blockstride.kernels.{source.parts[-3]}.cpu.{source.stem}")
        ).values()
        if isinstance(program, Program)
    }
    assert {*ahead.programs_of(ahead.ROOMS)} == found


def test_what_processes_have_compiled_is_there_for_all(folder, monkeypatch):
    first = CompileAhead(ROOM)
    assert first.missing == first.names == first.left()
    first.start(processes=2)
    assert first.wait()
    assert first.left() == []
    assert {file.suffix for file in folder.iterdir()} == {".o"}
    second = CompileAhead(ROOM)
    assert (second.missing, second.names) == ([], first.names)
    # this process calls what another has compiled
    monkeypatch.setattr(ahead, "compile_program", None)
    for name in second.names:
        module, _, function = name.rpartition(".")
        Program(getattr(import_module(module), function).function)._loaded()


def test_what_another_process_compiles_is_left_to_it(folder, monkeypatch):
    compiled = []
    monkeypatch.setattr(ahead, "compile_program", lambda f: compiled.append(f.__name__) or b"code")
    (name, *others) = CompileAhead(ROOM).names
    with CodeFile(ahead.KERNELS / "mlp" / "cpu", name).lock(0.0):
        CompileAhead(ROOM).help()
    assert name.rpartition(".")[2] not in compiled
    assert len(compiled) == len(others)
    CompileAhead(ROOM).help()
    assert CompileAhead(ROOM).missing == []


def test_closing_ends_the_processes_at_once_and_leaves_nothing_half_done(folder):
    compiling = CompileAhead(("attention",))
    compiling.start(processes=2)
    workers = compiling._workers
    begin = time.monotonic()
    compiling.close()
    assert time.monotonic() - begin < 5
    assert all(worker.poll() is not None for worker in workers)
    assert not [file for file in folder.glob("*.o") if file.stat().st_size < 100]


def test_processes_end_with_the_one_that_started_them(folder):
    code = "import os; from blockstride.kernels import CompileAhead; "
    code += "a = CompileAhead(); a.start(1); print(a._workers[0].pid, flush=True); os._exit(0)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    state = Path(f"/proc/{int(said)}/stat")
    deadline = time.monotonic() + 10
    # a zombie has ended, be it that nobody has asked for it
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_begun_where_nothing_can_be_kept(monkeypatch):
    monkeypatch.setattr(code_cache, "cache_folder", lambda: None)
    monkeypatch.setattr(ahead, "cache_folder", lambda: None)
    compiling = CompileAhead(ROOM)
    compiling.start(processes=2)
    assert not compiling._workers
    assert not compiling.wait(0.1)


def test_two_threads_call_a_new_program_that_is_compiled_once(folder, monkeypatch):
    native = import_module("blockstride.kernels.common.cpu.native")
    module, _, function = CompileAhead(ROOM).names[0].rpartition(".")
    program = Program(getattr(import_module(module), function).function)
    compiled, real = [], native.compile_program
    monkeypatch.setattr(native, "compile_program", lambda f: compiled.append(f) or real(f))
    callers = [threading.Thread(target=program._loaded) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(compiled) == 1


def test_a_room_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"^rooms: expected some of .*, got \['kitchen'\]"):
        CompileAhead(["kitchen"])
