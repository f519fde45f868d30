"""A spread sample of the cross product of all that two engines may differ in; see `prove.py`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_moved_bytes_equal_a_direct_re_shard_in_a_spread_sample_of_all_cases():
    ran = subprocess.run(
        [sys.executable, "-m", "tests.transfer.prove", "--sample", "1", "--random", "40"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "40 random hand-overs right" in ran.stdout
    counted = re.findall(r"(\d+) in all", ran.stdout)
    assert int(counted[-1]) >= 400
