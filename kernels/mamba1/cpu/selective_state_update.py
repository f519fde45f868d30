"""A few tokens of a selective scan for CPUs: the scan itself, over short sequences."""

from typing import Any

from torch import Tensor

from blockstride.kernels.common.cpu.short_sequences import over_short_sequences
from blockstride.kernels.mamba1.cpu.selective_scan import selective_scan


def selective_state_update(x: Tensor, **inputs: Any) -> Tensor:
    """See `blockstride.kernels.selective_state_update`."""
    return over_short_sequences(selective_scan, x, 2, **inputs)
