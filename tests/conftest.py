"""What every test stands on: a safe ``sys.path``, signals, and the hypothesis profiles."""

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
# files and folders that take longest, from the longest on: they start first, so that no process is
# left with one of them at the end, and `make check` leaves them out
SLOW = (
    # ranks of models/distributed load the programs that the two before it compile
    *("kernels/gpu/test_model_tokens.py", "kernels/gpu/test_selective_scan.py"),
    *("kernels/gpu/test_static.py", "models/test_jamba_equals_transformers.py"),
    *("models/test_mamba2_hybrids_equal_transformers.py", "models/distributed"),
    *("transfer/test_every_case.py", "transfer/connector", "models/test_devices.py"),
    *("transfer/tiers", "models/serving", "models/test_llm.py"),
    *("examples", "kernels/test_gpu_script.py", "models/test_drawn_texts.py"),
    *("models/test_program.py", "models/test_schedules.py", "models/test_callers.py"),
    *("models/test_interrupted_steps.py", "models/test_layouts_command.py"),
    *("models/test_shapes.py", "models/test_generate_command.py", "transfer/test_atomic_file.py"),
)

# the root's kernels/ folder would shadow Hugging Face's package of that name
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

# a shell has what it starts in the background ignore Ctrl-C, and what that starts inherits it
signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples on every machine; no deadline, since a first call may compile
settings.register_profile("test", deadline=None, derandomize=True)
# `make prove`: new examples on every run, and many
settings.register_profile("prove", deadline=None, max_examples=5_000)
settings.load_profile("test")


def place_among_slow(path: Path) -> int:
    """The index in `SLOW` of a file, or of a folder that it is in; past the last if it's quick."""
    names = (path, *path.parents)
    places = (i for i, name in enumerate(SLOW) if TESTS / name in names)
    return next(places, len(SLOW))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {path: place_among_slow(path) for path in {item.path for item in items}}
    for item in items:
        if places[item.path] < len(SLOW):
            item.add_marker("slow")
    items.sort(key=lambda item: places[item.path])
