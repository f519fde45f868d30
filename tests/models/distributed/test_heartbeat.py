"""Heartbeats tell who makes progress, and who is stuck, stopped or dead."""

import subprocess
import sys
from threading import Event, Thread
from time import monotonic, sleep

import pytest

from blockstride.models.distributed import heartbeat
from blockstride.models.distributed.heartbeat import BEATS, Pulse, Watch

SECONDS = 1.0


def computes(seconds):
    end = monotonic() + seconds
    while monotonic() < end:
        pass


def has_a_program_run(seconds):
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)


def observed(work):
    """Whether a thread was said to make progress, while it did something for some time."""
    said, made, done = [], Event(), Event()

    def run():
        pulse = Pulse(SECONDS, lambda beat: None)
        said.append(pulse)
        made.set()
        done.wait()
        work(pulse)

    thread = Thread(target=run)
    thread.start()
    made.wait()
    (pulse,) = said
    pulse.makes_progress()
    done.set()
    sleep(0.2)
    pulse.makes_progress()
    sleep(0.3)
    makes_progress = pulse.makes_progress()
    thread.join()
    return makes_progress


def is_idle(pulse):
    with pulse.idle():
        sleep(1)


def finishes_work(pulse):
    for _ in range(50):
        sleep(0.02)
        pulse.finished_work()


@pytest.mark.parametrize(
    ("work", "makes_progress"),
    [
        (is_idle, True),
        (finishes_work, True),
        (lambda pulse: computes(1), True),
        (lambda pulse: has_a_program_run(1), True),
        (lambda pulse: sleep(1), False),
    ],
    ids=["is idle", "finishes work", "computes", "has a program run", "waits"],
)
def test_a_thread_makes_progress_unless_it_waits_for_what_does_not_come(work, makes_progress):
    assert observed(work) == makes_progress


def test_one_piece_of_work_may_not_take_for_ever(monkeypatch):
    monkeypatch.setattr(heartbeat, "STEP_SECONDS", 0.4)
    assert not observed(lambda pulse: computes(1))


def test_a_process_that_misses_all_beats_is_reported_once():
    unresponsive = []
    watch = Watch(SECONDS / 2, unresponsive.append)
    watch.start(["dead", "alive"])
    for _ in range(3 * BEATS):
        watch.heard("alive")
        sleep(SECONDS / 2 / BEATS)
    watch.heard("dead")
    watch.stop()
    assert unresponsive == ["dead"]
