"""Processes that the tests of one module share, killed whatever happens."""

import sys
from collections.abc import Iterator

import pytest

from tests.transfer.connector import roles
from tests.transfer.connector.processes import Crew

if sys.platform != "linux":  # NIXL is only published for Linux
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="package")
def shared_crew() -> Iterator[Crew]:
    crew = Crew()
    try:
        yield crew
    finally:
        crew.kill()


@pytest.fixture
def crew(shared_crew: Crew) -> Iterator[Crew]:
    """Processes to hire; what a test leaves in them is ended."""
    yield shared_crew
    shared_crew.dismiss(roles.reset)
