"""The laws of arguments, on CPUs."""

import pytest

from tests.kernels.argument_laws import *  # noqa: F403
from tests.kernels.offset_laws import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cpu"
