"""The decode step of a selective scan for CPUs: the scan itself, over short sequences."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from blockstride.kernels.cpu.selective_scan import selective_scan


def selective_state_update(x: Tensor, *inputs: Tensor, **options: Any) -> Tensor:
    """See `blockstride.kernels.selective_state_update`."""
    if x.dim() == 2:
        return selective_scan(x, *inputs, None, None, **options)
    return over_short_sequences(selective_scan, x, *inputs, **options)


def over_short_sequences(
    scan: Callable[..., Tensor],
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    ssm_state: Tensor,
    state_indices: Tensor,
    *,
    z: Tensor | None,
    out: Tensor | None,
    **options: Any,
) -> Tensor:
    """Let a scan over prompts take the new tokens of each sequence, which have an axis here."""
    num_seqs, num_new = x.shape[:2]
    starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
    rows, dt, B, C = (part.flatten(0, 1) for part in (x, dt, B, C))
    result = scan(
        rows, dt, A, B, C, ssm_state, state_indices, starts, torch.ones(num_seqs, dtype=torch.bool),
        z=None if z is None else z.flatten(0, 1), out=None, **options,
    ).view(x.shape)  # fmt: skip
    return result if out is None else out.copy_(result)
