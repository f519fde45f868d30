"""No offset into an argument of a public function is one of 32 bits, on CPUs and in Triton.

Each axis of each tensor in turn is laid out so that its last entry lies 2**31 elements behind its
first, in memory that exists only where it is touched. `test_arguments.py` of a folder collects it.
"""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tests.kernels.argument_laws import ENTRIES, assert_same, replaced, tensors_of
from tests.kernels.calls import Call
from tests.kernels.gpu.support.pools import lazy_pool
from tests.kernels.recurrences import BY_TOKEN, OF_PROMPTS, Arguments

LENGTHS = (2, 1, 2)
# offsets into these have 64 bits whatever their strides are; a launcher chooses those of the others
TOGETHER = {
    *BY_TOKEN,
    *OF_PROMPTS,
    *("out", "query", "state_indices", "D", "dt_bias", "bias", "seq_lens", "expert_ids"),
    *("recurrence_bias", "input_bias"),
}


def far_apart(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """The same numbers, with every entry of some axes but the first far behind the one before it.

    A stride itself has 31 bits, or the compiler would take 64 for its products without being told.
    """
    strides, step = [0] * tensor.dim(), 1
    for axis in reversed(range(tensor.dim())):
        strides[axis] = step
        step *= tensor.shape[axis]
    for axis in axes:
        # a multiple of 16, as pages are aligned; another one for each axis, so that none overlap
        least = 2**31 // (tensor.shape[axis] - 1) + 16 * 64**axis
        strides[axis] = min(least, 2**31 - 16 * 64**axis) // 16 * 16
    return lazy_pool(tuple(tensor.shape), tuple(strides), tensor.dtype).copy_(tensor)


def long_axes(arguments: Arguments, call: Call) -> dict[str, list[int]]:
    """The axes that can be laid out so: of what must be dense from byte to byte, the outer ones."""
    axes = {}
    for path, tensor in tensors_of(arguments):
        count = tensor.dim() - 1 if path in call.dense else tensor.dim()
        axes[path] = [axis for axis in range(count) if tensor.shape[axis] > 1]
    return axes


def layouts(axes: dict[str, list[int]]) -> Iterator[dict[str, list[int]]]:
    """What is far apart in a call: all of `TOGETHER`, then each axis of each other tensor alone."""
    yield {path: axes[path] for path in axes if path in TOGETHER}
    alone = {path: own for path, own in axes.items() if path not in TOGETHER}
    yield from ({path: [axis]} for path, own in alone.items() for axis in own)


@pytest.mark.parametrize(("name", "call"), ENTRIES)
def test_no_stride_of_an_argument_meets_2_to_the_31(name: str, call: Call, device: str):
    if torch.device(device).type != "cpu":
        pytest.skip("no device has memory that takes no room")
    expected = call.arguments(device, LENGTHS)
    axes = long_axes(expected, call)
    wanted = call.function(**expected)
    for layout in layouts(axes):
        arguments = call.arguments(device, LENGTHS)
        near = dict(tensors_of(arguments))
        for path in layout:
            arguments = replaced(arguments, path, far_apart(near[path], layout[path]))
        try:
            assert_same(call.function(**arguments), wanted, call.tolerance)
            assert_same(arguments, expected, call.tolerance)
        except BaseException as error:
            error.add_note(f"{name}: far apart are axes {layout}")
            raise
