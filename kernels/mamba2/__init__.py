"""The state space duality of Mamba-2."""

from blockstride.kernels.mamba2.ssd_ring_update import fold_state_ring, ssd_ring_update
from blockstride.kernels.mamba2.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.ssd_state_update import ssd_state_update
from blockstride.kernels.mamba2.state_ring import StateRing

__all__ = ["StateRing", "fold_state_ring", "ssd_ring_update", "ssd_scan", "ssd_state_update"]
