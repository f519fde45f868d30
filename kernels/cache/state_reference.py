"""What unpacking, packing and copying recurrent states does, in plain torch.

A page is nothing but bytes, and a field says which of them are those of each element. The Triton
kernel and the functions for CPUs do the same, bit for bit, and the tests of both hold them to this
file, with which they share no code. `state_pages.py` comes next.
"""

from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Int8, Int32, Int64, Num
from torch import Tensor

from blockstride.kernels.cache.state_field import StateField


def unpack_state(
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    state_indices: Int32[Tensor, " num_seqs"],
    fields: Sequence[StateField],
    dtypes: Sequence[torch.dtype] | None = None,
) -> tuple[Num[Tensor, "num_seqs ..."], ...]:
    """See `blockstride.kernels.unpack_state`: every element of a field is read from its bytes."""
    states = []
    for field, dtype in zip(fields, dtypes or [f.dtype for f in fields], strict=True):
        state = torch.zeros(len(state_indices), *field.shape, dtype=dtype, device=pages.device)
        for row, block in enumerate(state_indices.tolist()):
            if block > 0:
                elements = pages[block, 0, 0, bytes_of(field, pages.device)].view(field.dtype)
                state[row] = rearrange(elements, "... 1 -> ...").to(dtype)
        states.append(state)
    return tuple(states)


def pack_state(
    states: Sequence[Num[Tensor, "num_seqs ..."]],
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    state_indices: Int32[Tensor, " num_seqs"],
    fields: Sequence[StateField],
) -> None:
    """See `blockstride.kernels.pack_state`: every element of a field is written to its bytes."""
    for state, field in zip(states, fields, strict=True):
        elements = rearrange(state.to(field.dtype), "... -> ... 1").contiguous().view(torch.int8)
        for row, block in enumerate(state_indices.tolist()):
            if block > 0:
                pages[block, 0, 0, bytes_of(field, pages.device)] = elements[row]


def bytes_of(field: StateField, device: torch.device) -> Int64[Tensor, "*shape itemsize"]:
    """Which bytes of a page are those of each element."""
    place = torch.zeros((), dtype=torch.int64, device=device)
    for extent, stride in zip(field.shape, field.stride, strict=True):
        place = place[..., None] + stride * torch.arange(extent, device=device)
    itemsize = field.dtype.itemsize
    return field.offset_bytes + itemsize * place[..., None] + torch.arange(itemsize, device=device)


def copy_state(
    pages: Int8[Tensor, "num_blocks 1 1 page_bytes"],
    source_indices: Int32[Tensor, " num_copies"],
    destination_indices: Int32[Tensor, " num_copies"],
) -> None:
    """See `blockstride.kernels.copy_state`: whole pages are copied."""
    for read, written in zip(source_indices.tolist(), destination_indices.tolist(), strict=True):
        if read > 0 and written > 0:
            pages[written] = pages[read]
