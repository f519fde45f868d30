"""Recurrent states out of byte pages, back, and from page to page, for CPUs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockstride.kernels.cache.state_field import StateField


def unpack_state(
    pages: Tensor,
    state_indices: Tensor,
    fields: Sequence[StateField],
    dtypes: Sequence[torch.dtype],
) -> tuple[Tensor, ...]:
    """See `blockstride.kernels.unpack_state`."""
    live = state_indices > 0
    blocks = state_indices[live].long()
    states = []
    for field, dtype in zip(fields, dtypes, strict=True):
        state = torch.zeros(len(state_indices), *field.shape, dtype=dtype)
        state[live] = _typed(pages, field)[blocks].to(dtype)
        states.append(state)
    return tuple(states)


def pack_state(
    states: Sequence[Tensor],
    pages: Tensor,
    state_indices: Tensor,
    fields: Sequence[StateField],
) -> None:
    """See `blockstride.kernels.pack_state`."""
    live = state_indices > 0
    blocks = state_indices[live].long()
    for state, field in zip(states, fields, strict=True):
        _typed(pages, field)[blocks] = state[live].to(field.dtype)


def copy_state(pages: Tensor, source_indices: Tensor, destination_indices: Tensor) -> None:
    """See `blockstride.kernels.copy_state`."""
    live = (source_indices > 0) & (destination_indices > 0)
    pages[destination_indices[live].long()] = pages[source_indices[live].long()]


def _typed(pages: Tensor, field: StateField) -> Tensor:
    """One field of every page, as an array of its dtype over the pages' memory."""
    raw = pages[:, 0, 0, field.offset_bytes : field.end_bytes].view(field.dtype)
    return raw.as_strided((len(pages), *field.shape), (raw.stride(0), *field.stride))
