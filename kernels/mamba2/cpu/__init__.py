"""On CPUs."""

from blockstride.kernels.mamba2.cpu.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.cpu.ssd_state_update import ssd_state_update

__all__ = ["ssd_scan", "ssd_state_update"]
