"""A few tokens of Mamba-2's recurrence for CPUs: the scan itself, over short sequences."""

from typing import Any

from torch import Tensor

from blockstride.kernels.cpu.selective_state_update import over_short_sequences
from blockstride.kernels.cpu.ssd_scan import ssd_scan


def ssd_state_update(x: Tensor, *inputs: Tensor, **options: Any) -> Tensor:
    """See `blockstride.kernels.ssd_state_update`."""
    if x.dim() == 3:
        return ssd_scan(x, *inputs, None, None, **options)
    return over_short_sequences(ssd_scan, x, *inputs, **options)
