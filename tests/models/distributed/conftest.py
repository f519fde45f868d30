"""Deployments for tests, closed at the end of each."""

import contextlib

import pytest

from blockstride.models import DistributedLLM
from tests.models.distributed.deployments import SECONDS


@pytest.fixture
def deploy():
    """Makes a `DistributedLLM`."""
    with contextlib.ExitStack() as stack:

        def make(*arguments, **options):
            options = {"device": "cpu", "answer_seconds": SECONDS, **options}
            return stack.enter_context(DistributedLLM(*arguments, **options))

        yield make
