"""Engines in processes for tests, closed at the end of each."""

import contextlib
import sys

import pytest

from blockstride.models import LLM
from tests.models.distributed.deployments import SECONDS

if sys.platform != "linux":  # NIXL is only published for Linux
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def deploy():
    """Makes an `LLM`."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **options):
            options = {"device": "cpu", "timeout_seconds": SECONDS, **options}
            return stack.enter_context(LLM(*arguments, **options))

        yield make
