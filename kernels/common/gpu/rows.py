"""Rows of tokens, read and written; padding gets rows of zeros. Parameters of each channel."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load_rows(
    ptr, tokens, offs, mask_tokens, stride_token, stride, SIZE: tl.constexpr
):  # fmt: skip
    """Rows of some tokens; zeros past either end."""
    places = ptr + tokens[:, None] * stride_token + offs.to(tl.int64)[None, :] * stride
    return tl.load(places, mask=mask_tokens[:, None] & (offs < SIZE)[None, :], other=0.0)


@triton.jit
def store_rows(
    rows, ptr, tokens, offs, mask_tokens, stride_token, stride, SIZE: tl.constexpr
):  # fmt: skip
    """The inverse of `load_rows`, rounded to the dtype that they go to."""
    places = ptr + tokens[:, None] * stride_token + offs.to(tl.int64)[None, :] * stride
    mask = mask_tokens[:, None] & (offs < SIZE)[None, :]
    tl.store(places, rows.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def store_zeros(row_ptrs, stride_token, count, mask):
    """Write zeros to the rows of so many tokens, from the addresses of the first."""
    zeros = tl.zeros(row_ptrs.shape, row_ptrs.dtype.element_ty)
    for _ in range(count):
        tl.store(row_ptrs, zeros, mask=mask)
        row_ptrs += stride_token


@triton.jit
def load_vector(ptr, offs, mask):
    """An optional parameter of each channel in float32; zeros if there is none."""
    vector = tl.zeros(offs.shape, tl.float32)
    if ptr is not None:
        vector = tl.load(ptr + offs, mask=mask, other=0.0).to(tl.float32)
    return vector


def by_token(tensor: Tensor) -> tuple[int, int, int]:
    """Strides of [sequences, tokens, channels], where one token may have no axis of its own."""
    strides = tensor.stride()
    return strides if len(strides) == 3 else (strides[0], 0, strides[1])
