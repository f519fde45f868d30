"""Run the kernels in Triton's repaired interpreter (`TRITON_INTERPRET=1`) or on a CUDA device.

Triton decides when a kernel is decorated whether it is interpreted, so this is a session of its
own. Without either, only the files that compile for a GPU without running anything are collected.
"""

import functools
import inspect
import sys
from pathlib import Path

import pytest
import torch
import triton

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from blockstride.kernels.common.dispatch import INTERPRET  # noqa: E402

real_jit = triton.jit


def jit_of_the_function_itself(fn=None, **options):
    """`triton.jit` under the wrapper of jaxtyping's hook, whose globals are not the kernel's."""
    if fn is None:
        return functools.partial(jit_of_the_function_itself, **options)
    return real_jit(inspect.unwrap(fn), **options)


triton.jit = jit_of_the_function_itself

# these compile ahead of time, which an interpreted kernel cannot
COMPILED = {"test_static.py", "test_grids.py", "test_compile.py"}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.parent != HERE or not collection_path.name.startswith("test_"):
        return None
    if collection_path.name in COMPILED:
        return INTERPRET or None
    return None if INTERPRET or torch.cuda.is_available() else True


from support import interpreter, quick_interpreter  # noqa: E402

if INTERPRET:
    interpreter.repair()
    quick_interpreter.speed_up()


@pytest.fixture
def device() -> str:
    return "cpu" if INTERPRET else "cuda"


@pytest.fixture
def on_device(device: str):
    """Tensors that a test makes are on the device that it is for."""
    with torch.device(device):
        yield


@pytest.fixture
def overflow_is_an_error():
    """Integer overflow in a kernel fails the test (only the interpreter can tell)."""
    if not INTERPRET:
        yield
        return
    with interpreter.overflow_is_an_error():
        yield
