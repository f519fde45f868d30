"""Engines in processes for tests, closed at the end of each."""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from blockstride import kernels
from blockstride.models import LLM
from blockstride.models.distributed import local_ranks
from tests.models.distributed.deployments import SECONDS
from tests.nursery import Nurseries

if sys.platform != "linux":  # NIXL is only published for Linux
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def nurseries():
    """Where ranks come from, with all that a rank imports, compiled programs included."""
    rooms = sorted(Path(kernels.__path__[0]).glob("*/cpu"))
    programs = [f"blockstride.kernels.{room.parent.name}.cpu" for room in rooms]
    made = Nurseries(local_ranks.WORKER, *programs)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def forked_ranks(request, nurseries, monkeypatch):
    """Ranks are forks, but where a test says that it is about how they are started."""
    if "spawns" not in request.keywords:
        forks = SimpleNamespace(**{**vars(subprocess), "Popen": nurseries.popen})
        monkeypatch.setattr(local_ranks, "subprocess", forks)


@pytest.fixture
def deploy():
    """Makes an `LLM`."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **options):
            options = {"device": "cpu", "timeout_seconds": SECONDS, **options}
            return stack.enter_context(LLM(*arguments, **options))

        yield make
