"""What a launch costs before the GPU has anything to do; here, since tests run two at a time."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_launcher_takes_less_python_than_20_allocations():
    command = [sys.executable, str(Path(__file__).with_name("launchers.py")), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    times = json.loads(ran.stdout)
    del times["attention_schedule"]  # once a step, not once a layer
    # machines differ by more than launchers do, so the measure is taken in the same run
    allocation = times.pop("allocation")
    assert max(times.values()) < 20 * allocation, (times, allocation)
