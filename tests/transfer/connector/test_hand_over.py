"""Hand-overs between processes: a short sample of the cases that `prove` carries out."""

import re
import subprocess
import sys

from tests.transfer.connector.processes import ROOT

CASES = 8


def test_every_byte_arrives_in_as_many_descriptors_as_planned():
    # in processes of their own, since shape checks of every call would cost far more
    ran = subprocess.run(
        [sys.executable, "-m", "tests.transfer.connector.prove", "--cases", str(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert re.search(rf"{CASES} hand-overs between processes right", ran.stdout)
