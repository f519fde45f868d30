"""Tensors as compiled programs take them: float32, with rows whose elements lie side by side."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from blockstride.checks import expect_ids

FLOAT32 = torch.float32
FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = torch.finfo(FLOAT8).max


def is_float_rows(tensor: Tensor) -> bool:
    """Whether a program can take the tensor as it is."""
    return tensor.dtype is FLOAT32 and tensor.stride()[-1] == 1


def float_rows(tensor: Tensor) -> Tensor:
    """The tensor itself if a program can take it, or else a cast copy."""
    # written out, since a decode step asks it of some fifty tensors a layer
    if tensor.dtype is FLOAT32 and tensor.stride()[-1] == 1:
        return tensor
    return tensor.float().contiguous()


def float_vector(vector: Tensor | None) -> tuple[Tensor | None, int]:
    """A vector that a program can take, and its address: 0 if there is none."""
    if vector is None:
        return None, 0
    if vector.dtype is not FLOAT32 or vector.stride()[0] != 1:
        vector = vector.float().contiguous()
    return vector, vector.data_ptr()


def dense_vector(vector: Tensor | None) -> tuple[Tensor | None, int]:
    """A vector of ids, places or flags that a program can take, and its address: 0 for none."""
    if vector is None:
        return None, 0
    vector = vector.contiguous()
    return vector, vector.data_ptr()


def address_of(tensor: Tensor | None) -> int:
    """Where a tensor begins; 0 stands for none."""
    return 0 if tensor is None else tensor.data_ptr()


def result_like(x: Tensor, out: Tensor | None) -> Tensor:
    """Where a program writes: `out` if it can, or else a new float32 tensor shaped like `x`."""
    if out is not None and is_float_rows(out):
        return out
    if x.dtype is FLOAT32:
        # without options it takes half the time, and keeps the order of the strides
        like_x = torch.empty_like(x)
        if like_x.stride()[-1] == 1:
            return like_x
    return torch.empty(x.shape)


def delivered(result: Tensor, out: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a caller gets for the `result` of a program: `out`, filled, if one was given."""
    if out is not None and out is not result:
        return out.copy_(result)
    return result if dtype is FLOAT32 else result.to(dtype)


def to_float8(x: Tensor) -> Tensor:
    """Round to fp8 and saturate; torch's own cast made NaN of large values not long ago."""
    return x.float().clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)


@contextmanager
def float_states(
    pool: Tensor, state_indices: Tensor, touched: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cast the states of a few sequences to float32, and back when the block ends.

    Args:
        pool: States of a narrower dtype, one for each block.
        state_indices: State block of each sequence.
        touched: Sequences whose state may be read or written; the pool's other states stay as they
            are, to the bit.

    Yields:
        A pool of the touched states alone, and indices into it that are 0 for other sequences.

    Raises:
        ValueError: A block lies past the end of the pool.
    """
    blocks = state_indices[touched].long()
    expect_ids(blocks, "state_indices", len(pool))
    # a step may read and write a block by two names
    blocks, places = blocks.unique(return_inverse=True)
    states = torch.zeros(len(blocks) + 1, *pool.shape[1:])
    states[1:] = pool[blocks]
    indices = torch.zeros_like(state_indices)
    indices[touched] = places.to(indices.dtype) + 1
    yield states, indices
    pool[blocks] = states[1:].to(pool.dtype)
