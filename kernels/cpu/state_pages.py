"""Typed recurrent states out of byte pages and back, for CPUs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockstride.kernels.state_field import StateField


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


def _typed(pages: Tensor, field: StateField) -> Tensor:
    """One field of every page, as an array of its dtype over the pages' memory."""
    raw = pages[:, 0, 0, field.offset_bytes : field.end_bytes].view(field.dtype)
    return raw.as_strided((len(pages), *field.shape), (raw.stride(0), *field.stride))
