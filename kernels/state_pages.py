"""Typed recurrent states out of byte pages, and back."""

from collections.abc import Sequence

import torch
from jaxtyping import Int8, Int32, Num
from torch import Tensor

from blockstride.kernels.checks import FLOATS, INT32, expect, expect_tensor
from blockstride.kernels.dispatch import expect_cpu, implementation
from blockstride.kernels.state_field import StateField

INT8 = (torch.int8,)


def unpack_state(
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    state_indices: Int32[Tensor, " num_seqs"],
    fields: Sequence[StateField],
    dtypes: Sequence[torch.dtype] | None = None,
) -> tuple[Num[Tensor, "num_seqs ..."], ...]:
    """Copy the states of some sequences out of their pages, each field dense.

    Args:
        pages: Pool of pages, with any stride between them; only read.
        state_indices: State block of each sequence. The state of an id <= 0 is zero.
        fields: What a page holds; bytes outside the fields are not read.
        dtypes: What each field is cast to; its own dtype if not given.

    Returns:
        For each field a dense tensor `[num_seqs, *field.shape]`.

    Raises:
        ValueError: A field lies outside the page or off its alignment, or a count does not fit.
        TypeError: A dtype is not accepted.
    """
    _expect_pages(pages, state_indices, fields)
    dtypes = [field.dtype for field in fields] if dtypes is None else dtypes
    expect(len(dtypes) == len(fields), "dtypes", f"{len(fields)} of them", len(dtypes))
    for dtype in dtypes:
        expect(dtype in FLOATS, "dtypes", " or ".join(map(str, FLOATS)), dtype, TypeError)
    expect_cpu(pages, "pages")
    run = implementation("state_pages", "unpack_state", False)
    return run(pages, state_indices, fields, dtypes)


def pack_state(
    states: Sequence[Num[Tensor, "num_seqs ..."]],
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    state_indices: Int32[Tensor, " num_seqs"],
    fields: Sequence[StateField],
) -> None:
    """Copy typed states into the pages of their sequences: the inverse of `unpack_state`.

    Args:
        states: For each field a tensor `[num_seqs, *field.shape]`, cast to the field's dtype.
        pages: Pool of pages, with any stride between them, written in place. Bytes outside the
            fields are not written.
        state_indices: State block of each sequence, none of them twice. Nothing is written for an
            id <= 0.
        fields: What a page holds.

    Raises:
        ValueError: A field lies outside the page or off its alignment, or a shape does not fit.
        TypeError: A dtype is not accepted.
    """
    num_seqs = state_indices.shape[0]
    expect(len(states) == len(fields), "states", f"{len(fields)} of them", len(states))
    _expect_pages(pages, state_indices, fields)
    for state, field in zip(states, fields, strict=True):
        expect_tensor(state, "states", (num_seqs, *field.shape), FLOATS, pages.device)
    expect_cpu(pages, "pages")
    run = implementation("state_pages", "pack_state", False)
    run(states, pages, state_indices, fields)


def _expect_pages(pages: Tensor, state_indices: Tensor, fields: Sequence[StateField]) -> None:
    """Check that every field of every page can be seen as an array of its dtype."""
    num_blocks, _, _, page_bytes = pages.shape
    expect_tensor(pages, "pages", (num_blocks, 1, 1, page_bytes), INT8, pages.device)
    expect_tensor(state_indices, "state_indices", state_indices.shape, INT32, pages.device)
    expect(pages.stride(3) == 1, "pages", "bytes of a page side by side", pages.stride())
    for field in fields:
        expect(field.dtype in FLOATS, "fields", "a float dtype", field.dtype, TypeError)
        inside = field.offset_bytes >= 0 and field.end_bytes <= page_bytes
        expect(inside, "fields", f"a field within {page_bytes} bytes", field)
        steps = (pages.data_ptr() + field.offset_bytes, pages.stride(0))
        aligned = all(step % field.dtype.itemsize == 0 for step in steps)
        expect(aligned, "fields", f"multiples of {field.dtype.itemsize} bytes", field)
