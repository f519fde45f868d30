"""Grids of all launches of steps larger than any that runs, on tensors without memory."""

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from blockstride import kernels
from blockstride.kernels.cache.gpu import copy_runs as launch_copy_runs
from tests.kernels import calls, recurrences
from tests.kernels.argument_laws import ENTRIES
from tests.kernels.calls import Call

Launch = tuple[str, tuple[int, ...]]
# what CUDA has of each axis
X, Y, Z = 2**31 - 1, 65_535, 65_535
STEPS = {
    "a million tokens": (1_000_000,),
    "100,000 sequences": (1,) * 100_000,
    "both": (900_000, *(1,) * 99_999),
}
MANY_HEADS: dict[str, Any] = {
    "ssd_scan": partial(recurrences.ssd, num_heads=256),
    "ssd_state_update": partial(recurrences.ssd, num_heads=256),
    "gated_delta_rule": partial(recurrences.delta, num_value_heads=256),
    "gated_delta_rule_update": partial(recurrences.delta, num_value_heads=256, by_channel=True),
}
# operations of torch, and lists as long as there are sequences
LAUNCH_NOTHING = {"choose_experts", "linear", "pack_experts", "pack_weight"}
# looks at values on every device, of which there are none
BY_LAUNCHER = {"copy_runs": launch_copy_runs}


@pytest.fixture(scope="module", autouse=True)
def launches() -> Iterator[list[Launch]]:
    """Every launch of the module, which does not happen."""
    grids: list[Launch] = []
    real_run, real_driver = JITFunction.run, driver._active
    target = GPUTarget("cuda", 90, 32)
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))  # type: ignore[arg-type]
    JITFunction.run = lambda self, *_, grid, **__: grids.append((self.__name__, tuple(grid)))
    yield grids
    JITFunction.run, driver._active = real_run, real_driver


def assert_fits(launches: list[Launch]) -> None:
    assert launches
    for name, (x, y, z) in ((name, (*grid, 1, 1)[:3]) for name, grid in launches):
        assert x <= X, f"{name}: {x} programs on the first axis"
        assert y <= Y, f"{name}: {y} programs on the second axis"
        assert z <= Z, f"{name}: {z} programs on the third axis"


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("name", "call"), ENTRIES)
def test_no_step_passes_what_a_grid_can_have(
    name: str, call: Call, lengths: Sequence[int], launches: list[Launch]
):
    if name in LAUNCH_NOTHING:
        return
    launches.clear()
    function = BY_LAUNCHER.get(name, call.function)
    function(**call.arguments("meta", lengths))
    assert_fits(launches)


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", MANY_HEADS)
def test_nor_does_one_of_many_heads(name: str, lengths: Sequence[int], launches: list[Launch]):
    launches.clear()
    make = partial(calls.step if name.endswith("update") else calls.scan, MANY_HEADS[name])
    options = {"num_new": None} if name.endswith("update") else {}
    call = Call(getattr(kernels, name), partial(make, **options))
    call.function(**call.arguments("meta", lengths))
    assert_fits(launches)
