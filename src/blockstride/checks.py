"""The one way in which a public function refuses an argument.

Dimensions, shapes, dtypes and devices are checked on every device. Values are checked where they
can be read for nothing, on a CPU; on a GPU a read would stop the stream. `BLOCKSTRIDE_CHECK=1` in
the environment, or `full_checks()` round some calls, has them read and checked everywhere.
"""

import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class _Here(threading.local):
    """Of this thread alone."""

    hides_values = False


_HERE = _Here()


class _Switch:
    full_checks = os.environ.get("BLOCKSTRIDE_CHECK", "0") == "1"


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
        TypeError: It is no tensor, or the dtype is not accepted.
    """
    try:
        if tensor.shape == shape and tensor.dtype in dtypes and tensor.device == device:
            return
    except AttributeError:
        raise _no_tensor(tensor, name) from None
    expect(tensor.shape == shape, name, f"shape {tuple(shape)}", f"shape {tuple(tensor.shape)}")
    names = " or ".join(str(dtype) for dtype in dtypes)
    expect(tensor.dtype in dtypes, name, names, tensor.dtype, TypeError)
    expect(False, name, f"a tensor on {device}", f"one on {tensor.device}")


def _no_tensor(value: object, name: str) -> TypeError:
    return TypeError(f"{name}: expected a tensor, got {type(value).__name__}")


def expect_own_memory(tensor: Tensor, name: str) -> None:
    """Raise if elements of a tensor that is written share memory, as after `expand` they do.

    Raises:
        ValueError: An axis of several entries has a stride of 0.
    """
    # strides are asked for last, as they cost twice as much
    if not tensor.is_contiguous() and 0 in tensor.stride() and tensor.numel() > 0:
        axes = zip(tensor.shape, tensor.stride(), strict=True)
        is_shared = any(extent > 1 and stride == 0 for extent, stride in axes)
        got = f"strides {tensor.stride()}"
        expect(not is_shared, name, "memory of its own for every element that is written", got)


def shape_of(tensor: TensorLike, name: str, *num_axes: int) -> tuple[int, ...]:
    """The extents of an argument that has so many axes, or one of several numbers, or any.

    Raises:
        ValueError: It has another number of axes.
        TypeError: It is no tensor.
    """
    try:
        shape = tensor.shape
    except AttributeError:
        raise _no_tensor(tensor, name) from None
    if num_axes and len(shape) not in num_axes:
        counts = " or ".join(map(str, num_axes))
        expect(False, name, f"{counts} axes", f"shape {tuple(shape)}")
    return shape


def checks_are_full() -> bool:
    """Whether values are checked on every device, and kernels assert what they assume."""
    return _Switch.full_checks


@contextmanager
def full_checks(enabled: bool = True) -> Iterator[None]:
    """Check values on every device within the block, for every thread: for debugging.

    Each check waits for the device, and no stream can be captured meanwhile.
    """
    before, _Switch.full_checks = _Switch.full_checks, enabled
    try:
        yield
    finally:
        _Switch.full_checks = before


@contextmanager
def hidden_values() -> Iterator[None]:
    """Check no values within the block, in this thread, wherever they lie.

    What runs there is recorded, to be repeated with other values.
    """
    before, _HERE.hides_values = _HERE.hides_values, True
    try:
        yield
    finally:
        _HERE.hides_values = before


def values_are_readable(tensor: Tensor) -> bool:
    """Whether values may be looked at: they lie on the host, or full checks are asked for."""
    if _HERE.hides_values:
        return False
    return tensor.is_cpu or (_Switch.full_checks and not tensor.is_meta)


def expect_ids(
    ids: Tensor, name: str, limit: int, *, what: str = "ids", distinct: bool = False
) -> None:
    """Raise if an id lies past its pool, where values are readable; ids <= 0 are padding.

    Args:
        ids: Blocks of a pool.
        name: The argument that holds them.
        limit: Blocks of the pool, or what else lies past it.
        what: What they are called.
        distinct: Whether no block may be named twice, as one that is written.

    Raises:
        ValueError: An id is not below `limit`, or one comes twice.
    """
    if not values_are_readable(ids):
        return
    blocks = [block for block in ids.flatten().tolist() if block > 0]
    largest = max(blocks, default=0)
    expect(largest < limit, name, f"{what} below {limit}", largest)
    if distinct and len({*blocks}) != len(blocks):
        expect(False, name, "no block twice", blocks)


def expect_query_start_loc(query_start_loc: Tensor, num_tokens: int) -> None:
    """Raise unless `query_start_loc` cuts `num_tokens` rows into runs, where values are readable.

    Rows past the last run belong to no sequence: a step of fewer tokens than it has room for.

    Args:
        query_start_loc: Prefix sum of the number of tokens of each sequence.
        num_tokens: Rows of this step.

    Raises:
        ValueError: It does not start at 0, decreases, or ends past `num_tokens`.
    """
    if not values_are_readable(query_start_loc):
        return
    starts = query_start_loc.tolist()
    if starts[0] != 0 or starts[-1] > num_tokens or starts != sorted(starts):
        wanted = f"a sum that starts at 0, never decreases and ends at {num_tokens} at most"
        expect(False, "query_start_loc", wanted, starts)


def expect_scale(scale: Tensor | None, name: str, cache: Tensor) -> None:
    """Raise unless a scale belongs to a quantised cache: elsewhere it would be lost in silence.

    Args:
        scale: What is stored is multiplied by it when it is read; nothing is checked of none.
        name: The argument.
        cache: What it is a scale of.

    Raises:
        ValueError: The cache isn't quantised, or the scale has a shape, lies on another device, or
            is NaN where values are readable.
        TypeError: It is no float32.
    """
    if scale is None:
        return
    expect_tensor(scale, name, (), FLOAT32, cache.device)
    if cache.dtype in FLOATS:
        expect(False, name, f"None, for a cache of {cache.dtype} is not scaled", "a tensor")
    if values_are_readable(scale):
        expect(not math.isnan(scale), name, "a number", "nan")
