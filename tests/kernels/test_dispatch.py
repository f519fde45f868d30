"""Launches go to the GPU that a call's tensors are on."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blockstride.kernels.common import dispatch


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs that aren't there, of which the first is current."""
    current = [0]

    def exchange(index: int) -> int:
        before = current[0]
        if index >= 0:
            current[0] = index
        return before

    for name in ("_exchange_device", "_maybe_exchange_device"):
        monkeypatch.setattr(torch.cuda, name, exchange)
    return current


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    device: Any = torch.device("cuda:1")
    is_cuda: Any = True


def test_a_call_runs_on_the_gpu_of_its_first_tensor(gpus):
    seen = []
    run = dispatch.on_its_device(lambda *args, flag: seen.append((gpus[0], flag)))
    run([], torch.empty(2).as_subclass(OnGpu), flag=3)
    assert (seen, gpus) == ([(1, 3)], [0])
    run(torch.empty(2), flag=4)
    assert seen[1:] == [(0, 4)]


def test_the_current_gpu_is_as_before_after_an_error(gpus):
    def refuse(tensor):
        assert gpus == [1]
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        dispatch.on_its_device(refuse)(torch.empty(2).as_subclass(OnGpu))
    assert gpus == [0]


def test_triton_implementations_are_bound_to_their_device_where_there_is_a_gpu(monkeypatch):
    def launch(x):
        return x

    monkeypatch.setattr(dispatch, "import_module", lambda _: SimpleNamespace(launch=launch))
    find: Any = dispatch.implementation.__wrapped__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find(launch, True).__wrapped__ is launch
    assert find(launch, False) is launch


COUNTS = {"num_tokens", "num_seqs", "num_rows", "num_pairs", "num_runs", "num_checkpoints"}
KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def test_no_kernel_is_compiled_for_one_number_of_tokens_or_sequences():
    """Nor for one width of a table: these grow while requests are served."""
    found, special = set(), []
    for file in sorted(KERNELS.glob("*/gpu/*.py")):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef) or not function.name.endswith("_kernel"):
                continue
            counts = {
                argument.arg
                for argument in function.args.args
                if argument.arg in COUNTS | {"stride_table"}
            }
            spared = {
                name.value
                for decorator in function.decorator_list
                for name in ast.walk(decorator)
                if isinstance(name, ast.Constant)
            }
            found |= counts
            special += [f"{function.name}: {name}" for name in counts - spared]
    assert special == []
    assert found >= COUNTS | {"stride_table"}
