"""What is true of the compiled loops alone: threads, caches, faults, bits across calls."""

import ast
import math
import threading
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from torch import Tensor

from blockstride import kernels
from blockstride.kernels.common.cpu import native, vector_math
from blockstride.kernels.common.cpu.native import Program, arguments, claim, i64_at, num_tasks
from blockstride.kernels.common.dispatch import INTERPRET

pytestmark = pytest.mark.skipif(INTERPRET, reason="the interpreter replaces the compiled loops")

KERNELS = Path(__file__).resolve().parents[3] / "kernels"


def ids(*blocks: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int32)


def scan_inputs(length: int = 50, dim: int = 200) -> dict[str, Any]:
    x, dt, z = torch.randn(3, length, dim)
    B, C = torch.randn(2, length, 16)
    return {
        "x": x,
        "dt": dt,
        "A": -torch.rand(dim, 16),
        "B": B,
        "C": C,
        "ssm_state": torch.zeros(3, dim, 16),
        "state_indices": ids(1),
        "query_start_loc": ids(0, length),
        "has_initial_state": torch.tensor([False]),
        "z": z,
    }


def ssd_inputs(length: int = 50, num_heads: int = 4, head_dim: int = 80) -> dict[str, Any]:
    x, z = torch.randn(2, length, num_heads, head_dim)
    B, C = torch.randn(2, length, 2, 32)
    return scan_inputs(length) | {
        "x": x,
        "dt": torch.randn(length, num_heads),
        "A": -torch.rand(num_heads),
        "B": B,
        "C": C,
        "ssm_state": torch.zeros(3, num_heads, head_dim, 32),
        "z": z,
    }


def attention_inputs() -> dict[str, Any]:
    keys, values = torch.randn(2, 70, 4, 16, 64)
    return {
        "query": torch.randn(3, 8, 64),
        "key_cache": keys,
        "value_cache": values,
        "block_table": (torch.randperm(69) + 1).int().view(3, 23),
        "seq_lens": ids(360, 5, 200),
        "query_start_loc": ids(0, 1, 2, 3),
        "scale": 0.125,
    }


def count(address):
    (tally,) = arguments(address, 1)
    task = claim(address)
    while task < num_tasks(address):
        i64_at(tally)[task] += 1
        task = claim(address)


counting = Program(count)


# enough at the end that two threads are bound to reach for the same task
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 1000, 500_000])
@pytest.mark.parametrize("grain", [1, 7])
def test_every_task_runs_once(tasks, grain):
    tally = torch.zeros(tasks + 1, dtype=torch.int64)
    assert counting(tasks, grain, tally.data_ptr()) == 0
    assert torch.equal(tally[:-1], torch.ones(tasks, dtype=torch.int64))
    assert tally[-1] == 0


@pytest.mark.parametrize(("tasks", "threads"), [(0, []), (13, []), (14, [3]), (99, [3])], ids=str)
def test_enough_tasks_go_to_all_threads_of_torch(tasks, threads, monkeypatch):
    team, used = native.TEAM, []
    if team is None:
        pytest.skip("this build of torch has no OpenMP team to borrow")

    def watched(function: int, arguments: int, num_threads: int, flags: int) -> None:
        used.append(num_threads)
        team(function, arguments, num_threads, flags)

    monkeypatch.setattr(native, "TEAM", watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    tally = torch.zeros(100, dtype=torch.int64)
    counting(tasks, 7, tally.data_ptr())
    assert used == threads
    assert tally.sum() == tasks


def test_programs_run_alone_where_torch_has_no_team(monkeypatch):
    monkeypatch.setattr(native, "TEAM", None)
    tally = torch.zeros(50, dtype=torch.int64)
    counting(50, 1, tally.data_ptr())
    assert tally.tolist() == [1] * 50


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(num_threads):
    scan, attend = scan_inputs(), attention_inputs()
    expected = kernels.selective_scan(**scan), kernels.paged_attention(**attend)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(kernels.selective_scan(**scan), expected[0])
        assert torch.equal(kernels.paged_attention(**attend), expected[1])
    finally:
        torch.set_num_threads(before)


def test_two_python_threads_may_call_at_once():
    scan, attend = scan_inputs(), attention_inputs()
    expected = kernels.selective_scan(**scan), kernels.paged_attention(**attend)
    states = [torch.zeros_like(scan["ssm_state"]) for _ in range(2)]
    wrong = []

    def call(state: Tensor) -> None:
        inputs = dict(scan, ssm_state=state)
        for _ in range(30):
            if not torch.equal(kernels.selective_scan(**inputs), expected[0]):
                wrong.append("selective_scan")
            if not torch.equal(kernels.paged_attention(**attend), expected[1]):
                wrong.append("paged_attention")

    callers = [threading.Thread(target=call, args=(state,)) for state in states]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


PROMPTS = {
    "selective": (scan_inputs, kernels.selective_scan, kernels.selective_state_update),
    "ssd": (ssd_inputs, kernels.ssd_scan, kernels.ssd_state_update),
}


@pytest.mark.parametrize(("make", "scan", "update"), PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_in_chunks_and_steps_gives_the_bits_of_one_call(make, scan, update):
    inputs = make()
    state = torch.full_like(inputs["ssm_state"], math.nan)
    whole, outs = scan(**inputs), []
    rows = {name: inputs.pop(name) for name in ("x", "dt", "B", "C", "z")}
    inputs |= {"ssm_state": state}
    for start, stop in ((0, 17), (17, 40)):
        inputs |= {
            "query_start_loc": ids(0, stop - start),
            "has_initial_state": torch.tensor([start > 0]),
        }
        chunk = {name: tensor[start:stop] for name, tensor in rows.items()}
        outs.append(scan(**inputs, **chunk))
    del inputs["query_start_loc"], inputs["has_initial_state"]
    for t in range(40, 50):
        step = {name: tensor[t : t + 1] for name, tensor in rows.items()}
        outs.append(update(**inputs, **step))
    assert torch.equal(torch.cat(outs), whole)


def test_programs_are_compiled_from_helpers_of_their_own_folder_and_the_common_one():
    for source in KERNELS.glob("*/cpu/*.py"):
        folders = (f"blockstride.kernels.{source.parts[-3]}.cpu", "blockstride.kernels.common.cpu")
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and ".cpu" in (module := node.module or ""):
                assert module.startswith(folders), (source, module)


def test_block_ids_past_the_pool_are_refused():
    scan = scan_inputs()
    scan["state_indices"] = ids(3)
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 3, got 3"):
        kernels.selective_scan(**scan)
    with pytest.raises(ValueError, match=r"^state_indices: expected ids below 3, got 7"):
        kernels.causal_conv1d_update(
            torch.zeros(1, 1, 8), torch.zeros(8, 4), None, torch.zeros(3, 8, 3), ids(7)
        )
    cache = torch.zeros(3, 1, 4, 8)
    new = torch.zeros(1, 1, 8)
    with pytest.raises(ValueError, match=r"^slot_mapping: expected slots below 12, got"):
        kernels.kv_cache_update(new, new, cache, cache.clone(), torch.tensor([12]))
    with pytest.raises(ValueError, match=r"^source_blocks: expected ids below 3, got 3"):
        kernels.block_copy(cache[None], cache.clone()[None], ids(3), ids(1))
    with pytest.raises(ValueError, match=r"^destination_blocks: expected ids below 3, got 9"):
        kernels.block_copy(cache[None], cache.clone()[None], ids(1), ids(9))
    for new in (1, 30):
        attend = attention_inputs()
        attend |= {"query": torch.randn(new, 8, 64), "seq_lens": ids(40)}
        attend |= {"query_start_loc": ids(0, new), "block_table": ids(1, 2, 70)[None]}
        with pytest.raises(ValueError, match=r"^block_table: expected ids below 70, got 70"):
            kernels.paged_attention(**attend)
        attend |= {"block_table": ids(1, 2)[None]}
        with pytest.raises(ValueError, match=r"^seq_lens: expected .* 32 tokens .* got .*40"):
            kernels.paged_attention(**attend)
    with pytest.raises(ValueError, match=r"^expert_ids: expected experts from 0 to 1, got 2"):
        kernels.expert_mlp(
            torch.zeros(1, 4),
            torch.zeros(2, 6, 4),
            torch.zeros(2, 4, 3),
            torch.tensor([[0, 2]]),
            torch.ones(1, 2),
        )


REFERENCES = {
    "exp": (torch.exp, 1.0),
    "softplus": (lambda x: x.clamp(min=0) + (-x.abs()).exp().log1p(), 2.0),
    "silu": (torch.nn.functional.silu, 3.0),
    "tanh": (torch.tanh, 2.0),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_vector_functions_are_accurate_to_a_few_units_in_the_last_place(name):
    function, (reference, ulps) = getattr(vector_math, name).compiled, REFERENCES[name]

    @numba.njit(error_model="numpy")
    def apply(x, y):
        for i in range(len(x)):
            y[i] = function(x[i])

    x = torch.cat([torch.linspace(-80, 80, 100_001), torch.linspace(-2, 2, 100_001)])
    x = torch.cat([x, torch.logspace(-30, 1, 1000), -torch.logspace(-30, 1, 1000)])
    y = torch.empty_like(x)
    apply(x.numpy(), y.numpy())
    exact = reference(x.double())
    spacing = torch.nextafter(exact.float().abs(), torch.tensor(math.inf)) - exact.float().abs()
    assert ((y - exact).abs() / spacing).max() <= ulps


@pytest.mark.parametrize("name", REFERENCES)
def test_vector_functions_pass_nan_on_and_bear_infinity(name):
    function = getattr(vector_math, name).compiled

    @numba.njit(error_model="numpy")
    def apply(x, y):
        for i in range(len(x)):
            y[i] = function(x[i])

    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    y = torch.empty_like(x)
    apply(x.numpy(), y.numpy())
    limits = {
        "exp": (1.6e38, 0.0, 1.0),
        "softplus": (math.inf, 0.0, math.log(2)),
        "silu": (math.inf, -math.inf, 0.0),
        "tanh": (1.0, -1.0, 0.0),
    }[name]
    assert math.isnan(y[0])
    assert y[1:].tolist() == pytest.approx(limits, rel=0.05, abs=1e-30)
