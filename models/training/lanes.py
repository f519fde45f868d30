"""What the compiled loops of this package share: fast scalar functions and a way to use every core.

Loops run over `LANES` channels innermost, a constant, which LLVM turns into vector code; `np.exp`
would keep them scalar, hence `exp2`. Compiled functions release the GIL, and `run_tasks` shares
their tasks out to threads.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import torch
from jaxtyping import Float
from numpy import float32, int32
from torch import Tensor
from torch.nn import functional

LANES = 64

# no `reassoc`: it would cancel the rounding in `exp2`
_FAST = {"contract", "nnan", "ninf", "nsz"}


def jit(function: Callable[..., Any], fastmath: bool | set[str] = _FAST) -> Callable[..., Any]:
    """Compile a loop at its first call, and keep it on disk for later processes.

    The key on disk is the function's own file: after an edit of this one, touch the files that use
    it.
    """
    function = inspect.unwrap(function)  # the import hook of the tests wraps every function
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(function)


_LOG2_E = float32(1.4426950408889634)
_LOWEST, _HIGHEST = float32(-125.0), float32(126.0)
_ROUNDING = float32(1.5 * 2**23)  # adding it leaves the nearest integer in the low bits
# least-squares fit of 2**f on [-0.5, 0.5] with a relative error of 2e-8
_P1 = float32(0.693147206)
_P2 = float32(0.240226485)
_P3 = float32(0.0555032904)
_P4 = float32(0.00961837325)
_P5 = float32(0.00133998483)
_P6 = float32(0.000153707048)


@jit
def exp2(x):
    """2**x to float32 accuracy for x up to 126; everything below -125 gives 2**-125."""
    x = max(x, _LOWEST)
    rounded = x + _ROUNDING
    f = x - (rounded - _ROUNDING)
    power = float32(1) + f * (_P1 + f * (_P2 + f * (_P3 + f * (_P4 + f * (_P5 + f * _P6)))))
    exponent = int32(float32(rounded).view(int32) << int32(23))
    return int32(float32(power).view(int32) + exponent).view(float32)


@jit
def sigmoid(x):
    """1 / (1 + exp(-x)) to float32 accuracy."""
    return float32(1) / (float32(1) + exp2(min(-x * _LOG2_E, _HIGHEST)))


@functools.partial(jit, fastmath=True)
def sum_of(row):
    """Sum of a row of float32 in any order, so that LLVM may keep several partial sums."""
    total = float32(0)
    for i in range(LANES):
        total += row[i]
    return total


def in_blocks(tensor: Float[Tensor, "*batch channels"]) -> Float[Tensor, "*batch blocks lanes"]:
    """Cut the last axis into dense blocks of `LANES` channels, zeros filling up the last."""
    padding = -tensor.shape[-1] % LANES
    padded = functional.pad(tensor, (0, padding)) if padding else tensor.contiguous()
    return padded.view(*tensor.shape[:-1], -1, LANES)


def out_of_blocks(
    blocks: Float[Tensor, "*batch blocks lanes"], num_channels: int
) -> Float[Tensor, "*batch channels"]:
    """Undo `in_blocks`; a view where the blocks are dense."""
    return blocks.flatten(-2)[..., :num_channels]


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="blockstride-training")


def run_tasks(function: Callable[..., None], num_tasks: int, *tensors: Tensor) -> None:
    """Call `function(first, last, *arrays)` on slices of the tasks, one slice for each thread.

    The number of threads is torch's. What a task computes must not depend on the slice it is in, so
    that results do not depend on the number of threads.
    """
    arrays = [tensor.detach().numpy() for tensor in tensors]
    num_threads = min(torch.get_num_threads(), num_tasks)
    if num_threads <= 1:
        function(0, num_tasks, *arrays)
        return
    cuts = [num_tasks * thread // num_threads for thread in range(num_threads + 1)]
    futures = [
        _pool(num_threads).submit(function, first, last, *arrays)
        for first, last in itertools.pairwise(cuts)
    ]
    for future in futures:
        future.result()
