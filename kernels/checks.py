"""The one way in which a public function refuses an argument."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# what a key or value cache may hold; the last two want a scale
CACHE_DTYPES = (*FLOATS, torch.float8_e4m3fn, torch.int8)
FLOAT32 = (torch.float32,)
INT32 = (torch.int32,)
INT64 = (torch.int64,)
BOOL = (torch.bool,)


@runtime_checkable
class TensorLike(Protocol):
    """A tensor, or something opaque that stands for one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of its axes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """What it holds."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it is."""
        ...


def expect(
    condition: bool,
    name: str,
    expected: object,
    got: object,
    error: type[ValueError] | type[TypeError] = ValueError,
) -> None:
    """Raise unless `condition` holds, in one sentence that a caller can act on.

    Args:
        condition: What must be true.
        name: The argument (or field of an argument) that is at fault.
        expected: What would have been accepted.
        got: What came.
        error: `ValueError` for a value out of range, `TypeError` for a wrong type or dtype.

    Raises:
        ValueError: `<name>: expected <expected>, got <got>`, or `TypeError` when `error` says so.
    """
    if not condition:
        raise error(f"{name}: expected {expected}, got {got}")


def expect_tensor(
    tensor: TensorLike,
    name: str,
    shape: tuple[int, ...],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Raise unless `tensor` has this shape, one of these dtypes, and lies on this device.

    Written for decode steps: a tensor that passes costs three comparisons and formats nothing.

    Args:
        tensor: The argument.
        name: Its name in the public signature.
        shape: The exact shape.
        dtypes: What is accepted.
        device: Where the other arguments are.

    Raises:
        ValueError: The shape or the device differs.
        TypeError: The dtype is not accepted.
    """
    if tensor.shape == shape and tensor.dtype in dtypes and tensor.device == device:
        return
    expect(tensor.shape == shape, name, f"shape {shape}", f"shape {tuple(tensor.shape)}")
    names = " or ".join(str(dtype) for dtype in dtypes)
    expect(tensor.dtype in dtypes, name, names, tensor.dtype, TypeError)
    expect(False, name, f"a tensor on {device}", f"one on {tensor.device}")


def expect_query_start_loc(query_start_loc: Tensor, num_tokens: int) -> None:
    """Raise unless `query_start_loc` cuts `num_tokens` tokens into runs.

    The values are read only where that is free: on a GPU it would stop the stream.

    Args:
        query_start_loc: Prefix sum of the number of tokens of each sequence.
        num_tokens: Tokens of this step.

    Raises:
        ValueError: It does not start at 0, decreases, or does not end at `num_tokens`.
    """
    if query_start_loc.is_cuda:
        return
    starts = query_start_loc.tolist()
    if starts[0] != 0 or starts[-1] != num_tokens or starts != sorted(starts):
        wanted = f"a sum that starts at 0, never decreases and ends at {num_tokens}"
        expect(False, "query_start_loc", wanted, starts)
