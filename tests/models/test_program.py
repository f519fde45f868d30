"""The command as a process: signals, pipes and closed streams, as a shell deals with them."""

import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockstride.kernels import CompileAhead
from blockstride.models.cli import main

COMMAND = [sys.executable, "-m", "blockstride.models.cli"]
PAIR = ("--prefill", "mib=16", "--decode", "mib=16")
# buffers are part of what a pipe does
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(autouse=True, scope="module")
def all_is_compiled():
    """A first start says that it compiles."""
    CompileAhead().help()


def start(folder, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, with its temporary files in `folder`."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**ENVIRONMENT, "TMPDIR": str(folder)},
    )


def processes_of(folder) -> set[str]:
    """Processes that were started with `folder` in their environment and aren't ended."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if is_ours and state != "Z":
            found.add(process.name)
    return found


def wait_until_ended(folder) -> None:
    deadline = time.monotonic() + 10
    while left := processes_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def generate(model, *more: str) -> tuple[str, ...]:
    return ("generate", "--model", str(model), "--prompt", "a", "--max-tokens", "100000", *more)


@pytest.mark.parametrize(
    ("number", "engines", "first", "last"),
    [
        (signal.SIGINT, (), 0.3, 2.0),
        (signal.SIGTERM, PAIR, 2.0, 5.0),
        (signal.SIGINT, PAIR, 3.0, 8.0),
    ],
    ids=["imports", "start", "run"],
)
def test_a_signal_at_any_moment_ends_all_of_it_without_a_word(
    reference, tmp_path, number, engines, first, last
):
    process = start(tmp_path, *generate(reference.path, *engines))
    with process:
        time.sleep(random.Random(number).uniform(first, last))
        assert process.poll() is None
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == b""
    wait_until_ended(tmp_path)
    assert list(tmp_path.iterdir()) == []


def run(shell: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """What a line of bash does in which `"$@"` is the command with these arguments."""
    line = ["bash", "-c", shell, "-", *COMMAND, *arguments]
    variables = {**ENVIRONMENT, **environment}
    return subprocess.run(line, capture_output=True, env=variables, check=False, timeout=60)


def test_a_signal_that_the_caller_ignores_stays_ignored():
    line = "import signal; from blockstride.models import program; program.take_over(); "
    line += "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert run(f"trap '' INT; {sys.executable} -c '{line}'").stdout == b"True\n"


@pytest.mark.parametrize("command", ["--help", "generate"])
def test_a_reader_that_goes_away_ends_the_command_quietly(reference, tmp_path, command):
    arguments = generate(reference.path) if command == "generate" else (command,)
    process = start(tmp_path, *arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 141


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_lead_nowhere(closed):
    process = run(f'"$@" {closed}', "--help")
    assert (process.returncode, process.stderr) == (0, b"")
    assert bool(process.stdout) == (">&- " not in f" {closed} ".replace("2>&-", ""))


def test_a_full_disk_is_one_sentence_and_no_success():
    process = run('"$@" >/dev/full', "--help")
    assert process.returncode == 1
    assert process.stderr == b"blockstride: standard output: No space left on device\n"


def test_what_a_terminal_has_no_sign_for_is_spelt():
    line = "from blockstride.models import program; program.take_over(); print('\\xe9')"
    process = run(f'{sys.executable} -c "{line}"', PYTHONIOENCODING="ascii")
    assert (process.stdout, process.stderr) == (b"\\xe9\n", b"")


def test_garbage_is_looked_for_once_all_is_imported():
    line = "import gc; from blockstride.models import program; program.take_over(); "
    line += "print(gc.isenabled()); program.settle(); print(gc.isenabled(), gc.get_freeze_count())"
    first, second, count = run(f'{sys.executable} -c "{line}"').stdout.split()
    assert (first, second) == (b"False", b"True")
    assert int(count) > 1000
    # whoever calls the command from a program of their own keeps their garbage collector
    assert gc.isenabled()
    assert main(["layouts", "--config", "nowhere"]) == 2
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_nothing_heavy_is_imported_before_signals_are_taken_care_of():
    line = "import sys, blockstride.models.cli; print('torch' in sys.modules)"
    assert run(f'{sys.executable} -c "{line}"').stdout == b"False\n"


@pytest.mark.parametrize("arguments", [(), ("nothing",), ("--nothing",)])
def test_a_line_that_is_no_command_gets_one_sentence(arguments):
    process = run('"$@"', *arguments)
    assert (process.returncode, process.stdout) == (2, b"")
    assert process.stderr.startswith(b"blockstride: ")
    assert process.stderr.count(b"\n") == 1
