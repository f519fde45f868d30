"""The decode step of a selective scan for CPUs: the scan itself, over short sequences."""

from typing import Any

import torch
from torch import Tensor

from blockstride.kernels.cpu.selective_scan import selective_scan


def selective_state_update(
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
    """See `blockstride.kernels.selective_state_update`."""
    if x.dim() == 2:
        return selective_scan(
            x, dt, A, B, C, ssm_state, state_indices, None, None, z=z, out=out, **options
        )
    num_seqs, num_new, _ = x.shape
    starts = torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32)
    x, dt, B, C = (rows.flatten(0, 1) for rows in (x, dt, B, C))
    result = selective_scan(
        x, dt, A, B, C, ssm_state, state_indices, starts, torch.ones(num_seqs, dtype=torch.bool),
        z=None if z is None else z.flatten(0, 1), out=None, **options,
    ).view(num_seqs, num_new, -1)  # fmt: skip
    return result if out is None else out.copy_(result)
