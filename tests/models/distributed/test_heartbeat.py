"""Who gets on beats; who doesn't, or doesn't live, is noticed."""

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
    """Whether a thread was said to get on, while it did something for some time."""
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
    pulse.gets_on()
    done.set()
    sleep(0.2)
    pulse.gets_on()
    sleep(0.3)
    gets_on = pulse.gets_on()
    thread.join()
    return gets_on


def rests(pulse):
    with pulse.resting():
        sleep(1)


def ends_pieces(pulse):
    for _ in range(50):
        sleep(0.02)
        pulse.ended_a_piece()


@pytest.mark.parametrize(
    ("work", "gets_on"),
    [
        (rests, True),
        (ends_pieces, True),
        (lambda pulse: computes(1), True),
        (lambda pulse: has_a_program_run(1), True),
        (lambda pulse: sleep(1), False),
    ],
    ids=["rests", "ends pieces", "computes", "has a program run", "waits"],
)
def test_a_thread_gets_on_unless_it_waits_for_what_does_not_come(work, gets_on):
    assert observed(work) == gets_on


def test_nothing_computes_for_ever(monkeypatch):
    monkeypatch.setattr(heartbeat, "STEP_SECONDS", 0.4)
    assert not observed(lambda pulse: computes(1))


def test_who_misses_all_beats_is_silent_once_and_others_are_not():
    silent = []
    watch = Watch(SECONDS / 2, silent.append)
    watch.start(["dead", "alive"])
    for _ in range(3 * BEATS):
        watch.heard("alive")
        sleep(SECONDS / 2 / BEATS)
    watch.heard("dead")
    watch.stop()
    assert silent == ["dead"]
