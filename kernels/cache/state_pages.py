"""Typed recurrent states out of byte pages and back, and snapshots of whole pages."""

from collections.abc import Sequence

import torch
from jaxtyping import Int8, Int32, Num
from torch import Tensor

from blockstride.checks import (
    FLOATS,
    INT32,
    expect,
    expect_ids,
    expect_own_memory,
    expect_tensor,
    shape_of,
    values_are_readable,
)
from blockstride.kernels.cache.state_field import StateField
from blockstride.kernels.common.dispatch import implementation, runs_on_triton

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
        state_indices: State block of each sequence; checked where it is on the host. The state of
            an id <= 0 is zero.
        fields: What a page holds; bytes outside the fields are not read.
        dtypes: What each field is cast to; its own dtype if not given.

    Returns:
        For each field a dense tensor `[num_seqs, *field.shape]`.

    Raises:
        ValueError: A field lies outside the page or off its alignment, a count does not fit, or an
            index is past the pool.
        TypeError: A dtype is not accepted.
    """
    given = {**locals()}
    _expect_pages(pages, state_indices, fields)
    dtypes = given["dtypes"] = [f.dtype for f in fields] if dtypes is None else dtypes
    expect(len(dtypes) == len(fields), "dtypes", f"{len(fields)} of them", len(dtypes))
    for dtype in dtypes:
        expect(dtype in FLOATS, "dtypes", " or ".join(map(str, FLOATS)), dtype, TypeError)
    expect_ids(state_indices, "state_indices", len(pages))
    return implementation(unpack_state, runs_on_triton(pages))(**given)


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
        state_indices: State block of each sequence, none of them twice; checked where it is on the
            host. Nothing is written for an id <= 0.
        fields: What a page holds.

    Raises:
        ValueError: A field lies outside the page or off its alignment, a shape does not fit, or an
            index is past the pool or comes twice.
        TypeError: A dtype is not accepted.
    """
    given = {**locals()}
    (num_seqs,) = shape_of(state_indices, "state_indices", 1)
    expect(len(states) == len(fields), "states", f"{len(fields)} of them", len(states))
    _expect_pages(pages, state_indices, fields)
    for state, field in zip(states, fields, strict=True):
        expect_tensor(state, "states", (num_seqs, *field.shape), FLOATS, pages.device)
    expect_ids(state_indices, "state_indices", len(pages), distinct=True)
    expect_own_memory(pages, "pages")
    for field in fields:
        axes = zip(field.shape, field.stride, strict=True)
        is_shared = any(extent > 1 and stride == 0 for extent, stride in axes)
        expect(not is_shared, "fields", "bytes of its own for every element", field)
    implementation(pack_state, runs_on_triton(pages))(**given)


def copy_state(
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    source_indices: Int32[Tensor, " num_copies"],
    destination_indices: Int32[Tensor, " num_copies"],
) -> None:
    """Copy whole states into other blocks of their pool: snapshots, for prefixes to be shared.

    Args:
        pages: Pool of pages, with any stride between them, written in place. All bytes of a page
            are copied, whatever it holds; those between pages are not.
        source_indices: Blocks to read; checked where they are on the host, as the others. Nothing
            is copied from an id <= 0.
        destination_indices: Blocks to write, none of them twice, and none that is read by another
            copy of the call. Nothing is copied to an id <= 0.

    Raises:
        ValueError: The two lists differ in length, an index is past the pool, or a block is written
            twice, or read and written.
        TypeError: A dtype is not accepted.
    """
    given = {**locals()}
    shape = shape_of(source_indices, "source_indices", 1)
    _expect_pages(pages, source_indices, (), "source_indices")
    expect_tensor(destination_indices, "destination_indices", shape, INT32, pages.device)
    expect_ids(source_indices, "source_indices", len(pages))
    expect_ids(destination_indices, "destination_indices", len(pages))
    _expect_apart(source_indices, destination_indices)
    expect_own_memory(pages, "pages")
    implementation(copy_state, runs_on_triton(pages))(**given)


def _expect_apart(source_indices: Tensor, destination_indices: Tensor) -> None:
    """Raise if the order of copies would matter, where values are readable."""
    if not values_are_readable(source_indices):
        return
    pairs = zip(source_indices.tolist(), destination_indices.tolist(), strict=True)
    copies = [pair for pair in pairs if min(pair) > 0 and pair[0] != pair[1]]
    written = [into for _, into in copies]
    if len({*written}) != len(written) or {*written} & {read for read, _ in copies}:
        expect(False, "destination_indices", "blocks written once and not read", written)


def _expect_pages(
    pages: Tensor,
    state_indices: Tensor,
    fields: Sequence[StateField],
    name: str = "state_indices",
) -> None:
    """Check that every field of every page can be seen as an array of its dtype."""
    num_blocks, _, _, page_bytes = shape_of(pages, "pages", 4)
    expect_tensor(pages, "pages", (num_blocks, 1, 1, page_bytes), INT8, pages.device)
    expect_tensor(state_indices, name, shape_of(state_indices, name, 1), INT32, pages.device)
    expect(pages.stride(3) == 1, "pages", "bytes of a page side by side", pages.stride())
    for field in fields:
        expect(field.dtype in FLOATS, "fields", "a float dtype", field.dtype, TypeError)
        strides_fit = len(field.stride) == len(field.shape) and min(field.stride, default=0) >= 0
        expect(strides_fit, "fields", "a stride of at least 0 for each axis", field)
        inside = field.offset_bytes >= 0 and field.end_bytes <= page_bytes
        expect(inside, "fields", f"a field within {page_bytes} bytes", field)
        steps = (pages.data_ptr() + field.offset_bytes, pages.stride(0))
        aligned = all(step % field.dtype.itemsize == 0 for step in steps)
        expect(aligned, "fields", f"multiples of {field.dtype.itemsize} bytes", field)
