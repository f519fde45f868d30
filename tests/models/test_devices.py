"""Devices that a user names: found, or refused before anything loads; steps are timed by them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.distributed.local_ranks import LocalLauncher
from blockstride.models.engine import EngineStats, step_timer
from blockstride.models.engine.step_timer import StepTimer
from blockstride.models.loading import find_device
from tests.models.conftest import SHIPPED

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs that aren't there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("gpus")
def test_a_gpu_is_found_by_number_or_as_the_current_one():
    assert find_device("cuda:0") == torch.device("cuda:0")
    assert find_device("cuda") == find_device(None) == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"^device: expected cuda:0 to cuda:1, got 'cuda:9'$"):
        find_device("cuda:9")


@pytest.mark.parametrize("device", ["tpu", "meta", "mps", "cuda:x", "cuda:-1", "", "cpu cpu"])
def test_another_device_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"^device: expected "):
        find_device(device)


@pytest.mark.usefixtures("gpus")
def test_each_rank_of_an_engine_has_a_gpu_of_its_own():
    dealt = [["cuda:0"], ["cuda:1", "cuda:0"], ["cuda:1"]]
    assert LocalLauncher().deal("cuda", [1, 2, 1]) == dealt
    assert LocalLauncher().deal("cuda:1", [1, 1]) == [["cuda:1"], ["cuda:1"]]
    assert LocalLauncher().deal("cpu", [2, 1]) == [["cpu", "cpu"], ["cpu"]]
    with pytest.raises(ValueError, match=r"^device: expected 'cuda', .*, got cuda:1$"):
        LocalLauncher().deal("cuda:1", [1, 2])


@pytest.fixture
def clock(monkeypatch):
    """Time passes as a test says; a GPU that is waited for takes five seconds."""
    now = [100.0]
    monkeypatch.setattr(step_timer, "perf_counter", lambda: now[0])

    def synchronize(device):
        now[0] += 5.0

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return now


def step(timer: StepTimer, clock, seconds: float, tokens: int, **how: bool) -> None:
    timer.start()
    if how["is_decode"]:
        timer.settle()
    clock[0] += seconds
    timer.stop(tokens, **how)


def test_steps_that_nobody_waits_for_count_with_the_next_that_brings_tokens(clock):
    stats = EngineStats()
    timer = StepTimer(stats, torch.device("cuda:0"))
    step(timer, clock, 0.1, 64, is_decode=False, is_awaited=False)
    step(timer, clock, 0.1, 64, is_decode=False, is_awaited=False)
    assert (stats.steps, stats.prefill_tokens) == (2, 0)
    step(timer, clock, 3.0, 10, is_decode=False, is_awaited=True)
    assert (stats.prefill_tokens, round(stats.prefill_seconds, 6)) == (138, 3.2)
    clock[0] += 50  # nothing to do
    step(timer, clock, 1.0, 2, is_decode=True, is_awaited=True)
    assert (stats.decode_tokens, stats.decode_seconds) == (2, 1.0)


def test_an_aborted_prompt_is_not_timed_as_an_answer(clock):
    stats = EngineStats()
    timer = StepTimer(stats, torch.device("cuda:0"))
    step(timer, clock, 0.5, 64, is_decode=False, is_awaited=False)
    step(timer, clock, 1.0, 2, is_decode=True, is_awaited=True)
    assert (stats.prefill_tokens, stats.prefill_seconds) == (64, 5.5)
    assert (stats.decode_tokens, stats.decode_seconds) == (2, 1.0)


def test_a_cpu_has_done_a_step_when_it_returns(clock):
    stats = EngineStats()
    timer = StepTimer(stats, torch.device("cpu"))
    step(timer, clock, 0.5, 64, is_decode=False, is_awaited=False)
    assert (stats.prefill_tokens, stats.prefill_seconds) == (64, 0.5)


def test_warming_up_compiles_what_steps_need_and_touches_no_cache(reference, monkeypatch):
    llm = LLM(reference.path, device="cpu", config=EngineConfig(num_blocks=(5, 9), poison=True))
    before = [pool.storage.clone() for pool in llm.engine.pools]
    llm.engine.warm_up()
    for pool, storage in zip(llm.engine.pools, before, strict=True):
        assert torch.equal(pool.storage, storage)
    stats = llm.engine.report().stats
    assert stats.compile_seconds > 0
    assert (stats.steps, stats.prefill_tokens, stats.decode_tokens) == (0, 0, 0)
    monkeypatch.setattr("blockstride.kernels.common.cpu.native.compile_program", None)
    prompts = ["In the beginning", "x" * 60]
    completions = llm.generate(prompts, SamplingParams(max_tokens=4, ignore_eos=True))
    assert [len(completion.token_ids) for completion in completions] == [4, 4]


def test_on_a_gpu_nothing_is_compiled_after_warming_up_nor_waited_for(make_reference):
    """Devices that mix, or a step that waits for more than its tokens, end the process."""
    paths = [str(SHIPPED), str(make_reference(family="granite").path)]
    command = [sys.executable, str(BENCH / "serving.py"), "--json", *paths]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    for report in json.loads(result.stdout).values():
        assert report["compiled late"] == {}
        assert max(report["variants"].values()) <= 4, report["variants"]
        assert sum(report["variants"].values()) <= 2.5 * len(report["variants"])
