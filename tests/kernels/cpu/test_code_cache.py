"""What was compiled is found again, and what can't be kept or trusted is compiled anew."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from blockstride.kernels.common.cpu import code_cache, machine_code, native
from blockstride.kernels.common.cpu.code_cache import CodeFile
from blockstride.kernels.common.cpu.native import Program, arguments, claim, i64_at, num_tasks
from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = pytest.mark.skipif(INTERPRET, reason="the interpreter replaces the compiled loops")

HERE = Path(__file__).parent


def mark(address):
    (tally,) = arguments(address, 1)
    task = claim(address)
    while task < num_tasks(address):
        i64_at(tally)[task] = 7
        task = claim(address)


def divide(address):
    (tally,) = arguments(address, 1)
    if tally == 0:
        raise ZeroDivisionError


def works() -> bool:
    """Whether a new program does what it should."""
    tally = torch.zeros(3, dtype=torch.int64)
    Program(mark)(3, 1, tally.data_ptr())
    return tally.tolist() == [7, 7, 7]


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Names of the functions that are compiled, with a cache of the test's own."""
    names = []

    def compile_program(function):
        names.append(function.__name__)
        return machine_code.compile_program(function)

    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(native, "compile_program", compile_program)
    return names


def files(tmp_path) -> list[Path]:
    return sorted((tmp_path / "cache" / "programs").glob("*"))


def test_a_program_is_compiled_once_for_all_processes_of_a_user(compiled, tmp_path):
    assert works()
    assert works()
    assert compiled == ["mark"]
    (file,) = files(tmp_path)
    assert file.name.startswith(f"{mark.__module__}.mark-")
    assert file.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other", "folder"])
def test_what_is_damaged_is_compiled_again(compiled, tmp_path, damage):
    assert works()
    (file,) = files(tmp_path)
    content = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    else:
        flipped = content[:100] + bytes([content[100] ^ 1]) + content[101:]
        damaged = {"empty": b"", "cut": content[:-1], "flipped": flipped, "other": b"x" * 500}
        file.write_bytes(damaged[damage])
    assert works()
    assert compiled == ["mark", "mark"]
    if damage != "folder":
        assert works()
        assert compiled == ["mark", "mark"]


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nothing", "file"])
def test_where_nothing_can_be_kept_programs_still_run(compiled, tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(code_cache.VARIABLE, place.replace("file", str(tmp_path / "file")))
    assert works()
    assert compiled == ["mark"]


def test_a_user_without_a_home_has_no_cache(compiled, monkeypatch):
    monkeypatch.delenv(code_cache.VARIABLE)
    monkeypatch.setattr(code_cache, "user_cache_path", lambda *_: Path("~/.cache/blockstride"))
    assert code_cache.cache_folder() is None
    assert works()
    assert not Path("~").exists()


def test_the_users_own_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv(code_cache.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = code_cache.cache_folder()
    assert folder is not None
    assert tmp_path in folder.parents


@pytest.mark.parametrize("what", ["version", "host"])
def test_another_compiler_or_cpu_has_files_of_its_own(compiled, tmp_path, monkeypatch, what):
    assert works()
    monkeypatch.setattr(code_cache, what, lambda *_: "another")
    code_cache._toolchain.cache_clear()
    try:
        assert works()
        assert works()
    finally:
        code_cache._toolchain.cache_clear()
    assert compiled == ["mark", "mark"]
    assert len(files(tmp_path)) == 2


def test_a_change_of_any_helper_recompiles_the_programs_that_may_call_it(tmp_path):
    digest = code_cache.digest_of_sources.__wrapped__
    (tmp_path / "program.py").write_text("1")
    before = digest(tmp_path)
    assert digest(tmp_path) == before != digest(tmp_path.parent)
    (tmp_path / "helper.py").write_text("2")
    assert digest(tmp_path) != before


def test_old_versions_are_dropped(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "KEPT", 2)
    for version in range(4):
        monkeypatch.setattr(code_cache, "_toolchain", lambda version=version: bytes([version]))
        file = CodeFile(HERE, "name")
        file.write(b"code %d" % version)
        assert file.path is not None
        os.utime(file.path, (version, version))
        assert file.read() == b"code %d" % version
    assert len(files(tmp_path)) == 2


def test_a_process_waits_for_another_that_compiles_the_same(compiled):
    code = "import time; from pathlib import Path; "
    code += "from blockstride.kernels.common.cpu.code_cache import CodeFile; "
    code += f"lock = CodeFile(Path({str(HERE)!r}), 'name').lock(); "
    code += "print(lock.__enter__(), flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        file = CodeFile(HERE, "name")
        with file.lock(wait_seconds=0.1) as is_ours:
            assert not is_ours
        # whoever is killed holds nothing any more
        other.kill()
    with file.lock(wait_seconds=10.0) as is_ours:
        assert is_ours


def test_a_program_that_may_raise_is_refused(compiled):
    with pytest.raises(TypeError, match=r"^divide: expected a program that raises nothing, got"):
        Program(divide)(1, 1, 0)


def test_what_others_compile_is_optimised_as_ever(compiled):
    settings: Any = import_module("numba.core.config")
    before = settings.OPT
    assert works()
    assert before == settings.OPT

    @numba.njit
    def total(x):
        result = 0
        for i in range(len(x)):
            result += x[i]
        return result

    assert total(torch.arange(100).numpy()) == 4950
    (llvm,) = total.inspect_llvm().values()
    # a loop of an unoptimised function is not cut into vectors
    assert "x i64>" in llvm


def test_what_is_compiled_runs_without_numba(compiled, tmp_path):
    code = "import sys, torch; from blockstride import kernels; x = torch.ones(2, 64); "
    code += "print(kernels.gate_and_mul(x, kernels.SILU)[0, 0].item(), 'numba' in sys.modules)"
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    value = said[0].stdout.split()[0]
    assert [each.stdout.split() for each in said] == [[value, "True"], [value, "False"]]
