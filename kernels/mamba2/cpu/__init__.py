"""On CPUs."""

from blockstride.kernels.mamba2.cpu.ssd_ring_update import fold_state_ring, ssd_ring_update
from blockstride.kernels.mamba2.cpu.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.cpu.ssd_state_update import ssd_state_update

__all__ = ["fold_state_ring", "ssd_ring_update", "ssd_scan", "ssd_state_update"]
