"""A few tokens of Mamba-2's recurrence for CPUs: the scan itself, over short sequences."""

from typing import Any

from torch import Tensor

from blockstride.kernels.common.cpu.short_sequences import over_short_sequences
from blockstride.kernels.mamba2.cpu.ssd_scan import ssd_scan


def ssd_state_update(x: Tensor, **inputs: Any) -> Tensor:
    """See `blockstride.kernels.ssd_state_update`."""
    return over_short_sequences(ssd_scan, x, 3, **inputs)
