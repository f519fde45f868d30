"""The laws of arguments, on CPUs."""

import re

import pytest

from tests.kernels.argument_laws import *  # noqa: F403
from tests.kernels.argument_laws import ENTRIES, Call, replaced, tensors_of
from tests.kernels.offset_laws import *  # noqa: F403


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.mark.parametrize(("name", "call"), ENTRIES)
def test_elements_of_what_is_written_may_not_share_memory(name: str, call: Call):
    # checked before a device is chosen, so here alone
    arguments = call.arguments()
    call.function(**arguments)
    before = dict(tensors_of(call.arguments()))
    for path, tensor in tensors_of(arguments):
        if tensor.equal(before[path]):
            continue
        for axis in range(tensor.dim()):
            shared = before[path].narrow(axis, 0, 1).expand(tensor.shape)
            if shared.stride() == tensor.stride():
                continue
            with pytest.raises(ValueError, match=rf"^{re.escape(path)}: expected "):
                call.function(**replaced(call.arguments(), path, shared))
