"""`bench/gpu.py` loses a row to a kernel that crashes or hangs, and no other; it needs little."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

FAMILIES = """
import os, time
from gpu_cases.case import Case

def ok(): pass
def wrong(): raise ValueError("another value")
def hang(): time.sleep(600)

def family(*checks):
    cases = [Case(check.__name__, check, lambda: ok) for check in checks]
    return lambda device, smoke: iter(cases)

FAMILIES = {"first": family(ok, wrong, os.abort, ok), "second": family(hang, ok)}
"""

# what a machine with a GPU need not have; an import of it ends the process
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys(
    ["msgspec", "zmq", "nixl", "jaxtyping", "numba", "rich", "safetensors", "tokenizers"]
))
"""


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    """Exit status and results of a run whose modules come from `tmp_path` first."""
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, str(BENCH / "gpu.py"), "--smoke", "--out", str(tmp_path / "out")]
    result = subprocess.run(
        [*command, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    file = tmp_path / "out.json"
    assert file.exists(), result.stderr[-2000:]
    return result.returncode, json.loads(file.read_text())


def test_a_kernel_that_crashes_or_hangs_costs_its_own_row(tmp_path):
    (tmp_path / "some_cases.py").write_text(FAMILIES)
    code, result = run(tmp_path, "--cases", "some_cases", "--case-seconds", "6")
    assert [(row["case"], row["check"]) for row in result["rows"]] == [
        ("ok", "ok"),
        ("wrong", "ValueError: another value"),
        ("abort", "ended by signal 6"),
        ("ok", "ok"),
        ("hang", "no answer in time"),
        ("ok", "ok"),
    ]
    assert code == 1
    assert not list(tmp_path.glob("*.partial"))


def test_a_family_that_takes_too_long_leaves_the_others_their_time(tmp_path):
    (tmp_path / "some_cases.py").write_text(FAMILIES)
    _, result = run(tmp_path, "--cases", "some_cases", "--family-seconds", "0")
    assert [row["case"] for row in result["rows"]] == ["first", "second"]


@pytest.mark.parametrize("family", ["norm"])
def test_nothing_is_needed_but_torch_triton_numpy_and_einops(tmp_path, family):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    code, result = run(tmp_path, "--family", family)
    assert code == 0, result
    assert result["rows"]
    assert result["families"][-1] == "warp-specialised attention"
