"""What the tests of all kernels use: poisoned pools in any order, and one measure of error."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor

from tests.kernels.gpu.support.budget import by_reference

# the laws of recurrences stand in modules of their own, and explain themselves as tests do
pytest.register_assert_rewrite(
    "tests.kernels.argument_laws",
    "tests.kernels.offset_laws",
    "tests.kernels.prompt_laws",
    "tests.kernels.step_laws",
)

GUARD, GAP = 2, 3  # entries around a pool, and after each innermost row of it


class Pool(NamedTuple):
    """A view with any strides, in memory that is poisoned wherever the view is not."""

    memory: Tensor
    view: Tensor


def poison(memory: Tensor) -> Tensor:
    """Fill with NaN, or with the byte 0x7F, which is NaN in fp8 and the largest int8."""
    if memory.itemsize == 1:
        memory.view(torch.uint8).fill_(0x7F)
    else:
        memory.fill_(math.nan)
    return memory


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def pool_of() -> Callable[..., Pool]:
    """`pool_of(values, order)`: the values in memory whose axes run in `order`, outermost first."""

    def place(values: Tensor, order: tuple[int, ...] | None = None) -> Pool:
        order = tuple(range(values.dim())) if order is None else order
        extents = [values.shape[axis] for axis in order]
        extents[0] += 2 * GUARD
        extents[-1] += GAP
        memory = poison(torch.empty(extents, dtype=values.dtype))
        inner = memory[GUARD : extents[0] - GUARD]
        inner = inner.narrow(-1, 0, inner.shape[-1] - GAP)
        view = inner.permute([order.index(axis) for axis in range(values.dim())])
        view.copy_(values)
        return Pool(memory, view)

    return place


@pytest.fixture
def assert_same_bits() -> Callable[[Tensor, Tensor], None]:
    """Whole buffers, NaN included."""

    def check(actual: Tensor, expected: Tensor) -> None:
        assert actual.dtype == expected.dtype
        assert torch.equal(
            actual.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        )

    return check


@pytest.fixture
def assert_accurate() -> Callable[[Tensor, Tensor, Tensor], None]:
    """At most twice the error of a plain run in the same dtype, plus one unit in the last place."""

    def check(actual: Tensor, exact: Tensor, plain: Tensor) -> None:
        assert actual.shape == exact.shape == plain.shape
        assert exact.dtype == torch.float64
        if exact.numel() == 0:
            return
        ulp = torch.finfo(actual.dtype).eps * exact.abs().max().item()
        error = (actual.double() - exact).abs().max().item()
        allowed = 2 * (plain.double() - exact).abs().max().item() + ulp
        assert error <= allowed

    return check


@pytest.fixture
def assert_follows(assert_accurate: Callable[[Tensor, Tensor, Tensor], None]):
    """`assert_follows(function, reference, arguments)`: outputs and each block of states."""

    def check(function, reference, arguments: dict[str, Any], plain_dtype=torch.float32) -> None:
        exact, exact_states = by_reference(reference, arguments)
        plain, plain_states = by_reference(reference, arguments, plain_dtype)
        out, states = function(**arguments), arguments["ssm_state"]
        assert out.dtype == (arguments["x"] if "x" in arguments else arguments["v"]).dtype
        assert_accurate(out, exact, plain.to(out.dtype))
        for actual, wanted, rounded in zip(states, exact_states, plain_states, strict=True):
            assert_accurate(actual, wanted, rounded.to(states.dtype))

    return check


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Let arguments of a wrong shape or type through to the kernels' own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def lazy_memory(tmp_path: Path) -> Callable[[int, torch.dtype], Tensor]:
    """`lazy_memory(numel, dtype)`: zeros of any size, which take room only where written."""

    def make(numel: int, dtype: torch.dtype) -> Tensor:
        return torch.from_file(str(tmp_path / "lazy"), shared=True, size=numel, dtype=dtype)

    return make


@pytest.fixture
def overflow_is_an_error() -> None:
    """Integers of Python and of 64 bits overflow nowhere; `gpu/` has kernels whose do."""
