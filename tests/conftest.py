"""What every test stands on: a safe ``sys.path``, signals, and the hypothesis profiles."""

import signal
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# the root's kernels/ folder would shadow Hugging Face's package of that name
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

# a shell has what it starts in the background ignore Ctrl-C, and what that starts inherits it
signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples on every machine; no deadline, since a first call may compile
settings.register_profile("test", deadline=None, derandomize=True)
# `make prove`: new examples on every run, and many
settings.register_profile("prove", deadline=None, max_examples=5_000)
settings.load_profile("test")
