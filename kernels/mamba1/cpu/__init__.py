"""On CPUs."""

from blockstride.kernels.mamba1.cpu.selective_scan import selective_scan
from blockstride.kernels.mamba1.cpu.selective_state_update import selective_state_update

__all__ = ["selective_scan", "selective_state_update"]
