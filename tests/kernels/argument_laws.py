"""What holds of every tensor argument of every public function, on CPUs and in Triton.

A tensor is found by its path: `x`, `rotary[0]`. `test_arguments.py` of a folder collects the laws.
"""

import math
import re
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor

from blockstride import kernels
from tests.kernels.calls import CALLS, Call

ENTRIES = [pytest.param(name, call, id=f"{name} {kind}".strip())
           for name, calls in CALLS.items() for kind, call in calls.items()]  # fmt: skip
STRIDES = ("column", "every-other", "transposed", "offset")
PADDING = 16  # entries round a tensor: as many bytes as states and words are aligned to


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the arguments of a call, by its path."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from tensors_of(part, name)
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_of(part, f"{path}[{i}]")


def replaced(value: Any, path: str, tensor: Tensor, at: str = "") -> Any:
    """The same arguments with another tensor at a path."""
    if isinstance(value, Tensor):
        return tensor if at == path else value
    if isinstance(value, Mapping):
        return {name: replaced(part, path, tensor, name) for name, part in value.items()}
    # a named tuple, such as a field of a page, has no tensor
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        parts = (replaced(part, path, tensor, f"{at}[{i}]") for i, part in enumerate(value))
        return type(value)(parts)
    return value


def placed(tensor: Tensor, strides: str) -> Tensor:
    """The same values in memory of its own, in which they aren't dense.

    What lies between them is NaN, and in integers a number that is a valid id and another one.
    """
    shape = tensor.shape
    if strides == "rows-apart":
        # bytes must stay side by side, and pages on their alignment
        wide = _poisoned((*shape[:-1], shape[-1] + 2 * PADDING), tensor)
        view = wide[..., PADDING:-PADDING]
    elif tensor.dim() == 0 or strides == "offset":
        whole = _poisoned([extent + 2 * PADDING for extent in shape or (1,)], tensor)
        view = whole[tuple(slice(PADDING, PADDING + extent) for extent in shape or (1,))]
        view = view if shape else view[0]
    elif strides == "column":
        view = _poisoned((*shape, 3), tensor)[..., 1]
    elif strides == "every-other":
        view = _poisoned((*shape[:-1], 2 * shape[-1]), tensor)[..., ::2]
    else:
        axes = range(tensor.dim() - 1, -1, -1)
        view = _poisoned((*shape[::-1], 2), tensor)[..., 0].permute(*axes)
    return view.copy_(tensor)


def _poisoned(shape: Any, like: Tensor) -> Tensor:
    poison = math.nan if like.is_floating_point() else 1
    if like.itemsize == 1 and like.dtype is not torch.bool:
        return torch.full(shape, 0x7F, dtype=torch.int8, device=like.device).view(like.dtype)
    return torch.full(shape, poison, dtype=like.dtype, device=like.device)


def gaps_of(view: Tensor) -> Tensor:
    """All of a tensor's memory, with zeros for the tensor itself."""
    memory = torch.empty(0, dtype=view.dtype, device=view.device).set_(view.untyped_storage())
    memory = memory.clone()
    memory.as_strided(view.shape, view.stride(), view.storage_offset()).zero_()
    return memory


def assert_same(actual: Any, expected: Any, tolerance: float) -> None:
    """The same tensors in the same places, NaN included."""
    pairs = zip(tensors_of(actual), tensors_of(expected), strict=True)
    for (path, tensor), (_, wanted) in pairs:
        close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
        torch.testing.assert_close(tensor, wanted, **close, msg=f"{path} differs")


def test_every_public_function_has_a_call():
    functions = {
        name for name in kernels.__all__ if isinstance(getattr(kernels, name), FunctionType)
    }
    assert functions == set(CALLS)


@pytest.mark.parametrize(("name", "call"), ENTRIES)
def test_every_tensor_argument_may_have_any_strides(name: str, call: Call, device: str):
    expected = call.arguments(device)
    wanted = call.function(**expected)
    paths = [path for path, _ in tensors_of(expected)]
    for turn in range(len(STRIDES)):
        # each has all strides in turn, and never those of its neighbour
        strides = {path: STRIDES[(i + turn) % len(STRIDES)] for i, path in enumerate(paths)}
        strides |= dict.fromkeys(call.dense, "rows-apart")
        arguments = call.arguments(device)
        views = {path: placed(tensor, strides[path]) for path, tensor in tensors_of(arguments)}
        gaps = {path: gaps_of(view) for path, view in views.items()}
        for path, view in views.items():
            arguments = replaced(arguments, path, view)
        try:
            assert_same(call.function(**arguments), wanted, call.tolerance)
            assert_same(arguments, expected, call.tolerance)
            assert_same({path: gaps_of(view) for path, view in views.items()}, gaps, 0.0)
        except Exception as error:
            error.add_note(f"{name}: {strides}")
            raise


def wrong(tensor: Tensor) -> Iterator[tuple[str, Any]]:
    """What must not be taken for a tensor."""
    yield "no tensor", 0.5
    yield "another dtype", tensor.to(torch.complex64)
    yield "another device", tensor.to("meta")
    yield "an axis more", tensor[None]
    if tensor.dim() > 0:
        yield "an axis less", tensor[0]
        yield "two axes less" if tensor.dim() > 1 else "no axis", tensor.flatten()[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "call"), ENTRIES)
def test_a_wrong_tensor_is_refused_by_the_name_of_an_argument(name: str, call: Call, device: str):
    names = "|".join(call.make([1]))
    tensors = dict(tensors_of(call.arguments(device)))
    for path, tensor in tensors.items():
        for kind, other in wrong(tensor):
            if kind == "another device" and len(tensors) == 1:
                continue
            arguments = replaced(call.arguments(device), path, other)
            try:
                with pytest.raises((ValueError, TypeError)) as refusal:
                    call.function(**arguments)
                assert re.match(rf"({names})[^ ]*: expected ", str(refusal.value))
            except BaseException as error:
                error.add_note(f"{name}: {path} of {kind}: {other}")
                raise
