"""What a launch costs before the GPU has anything to do; here, since tests run two at a time."""

import json
import subprocess
import sys
from pathlib import Path


def test_launchers_take_less_than_30_us_of_python():
    command = [sys.executable, str(Path(__file__).with_name("launchers.py")), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    times = json.loads(ran.stdout)
    del times["attention_schedule"]  # once a step, not once a layer
    assert max(times.values()) < 30, times
