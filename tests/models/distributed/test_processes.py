"""Processes of a deployment: none outlives the one that started it, none is pinned, none spins."""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from blockstride.models import LLM
from tests.models.distributed.deployments import cpu_seconds, engine, greedy, is_running, until

IDLE_SECONDS = 2.0
SCRIPT = """
import json, os, sys, time
from blockstride.models import LLM, EngineConfig
small = {"cache_bytes": 1 << 24}
engines = {"prefill": EngineConfig(**small), "decode": EngineConfig(tp_size=2, **small)}
llm = LLM(sys.argv[1], device="cpu", **engines)
if sys.argv[2] == "forks":
    if os.fork() == 0:
        try:
            llm.generate("abc")
        except RuntimeError as error:
            llm.close()
            sys.exit("fork" not in str(error))
    assert os.wait()[1] == 0
    # the end of a fork, which is an ordinary one, ends nothing of its parent's
    assert os.path.exists(llm.engine.fleet._folder)
    llm.generate("abc")
    if os.fork() == 0:
        # it has all pipes of its parent, too
        time.sleep(60)
print(json.dumps([pid for engine in llm.engine.engines for pid in engine.pids]), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("end", "forks"),
    [(signal.SIGKILL, "alone"), (signal.SIGTERM, "alone"), (signal.SIGKILL, "forks")],
)
def test_all_processes_end_with_the_one_that_started_them(reference, tmp_path, end, forks):
    command = [sys.executable, "-c", SCRIPT, str(reference.path), forks]
    # in a session of its own, so that a fork that is left can be found and ended
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    ) as script:
        assert script.stdout is not None
        pids = json.loads(script.stdout.readline())
        assert len(pids) == 3
        assert all(map(is_running, pids))
        script.send_signal(end)
        try:
            until(lambda: not any(map(is_running, pids)), 10.0)
        finally:
            os.killpg(script.pid, signal.SIGKILL)


def test_closing_ends_all_processes(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine(tp_size=2))
    pids = [pid for each in llm.engine.engines for pid in each.pids]
    llm.close()
    assert not any(map(is_running, pids))
    assert not Path(llm.engine.fleet._folder).exists()


@pytest.mark.spawns
def test_no_process_is_pinned_to_a_core_or_spins(deploy, reference):
    llm = deploy(reference.path, prefill=engine(), decode=engine(tp_size=2))
    llm.generate("abc", greedy(4))
    pids = [pid for each in llm.engine.engines for pid in each.pids]
    assert all(os.sched_getaffinity(pid) == os.sched_getaffinity(0) for pid in pids)
    before = sum(map(cpu_seconds, pids))
    sleep(IDLE_SECONDS)
    # a thread that spins would take all of it
    assert sum(map(cpu_seconds, pids)) - before < 0.25 * IDLE_SECONDS * len(pids)


@pytest.mark.spawns
def test_processes_end_when_nobody_holds_their_deployment_any_more(reference):
    llm = LLM(reference.path, decode=engine(), device="cpu")
    (pid,) = llm.engine.engines[0].pids
    del llm
    gc.collect()
    until(lambda: not is_running(pid), 10.0)
