"""The state space duality of Mamba-2."""

from blockstride.kernels.mamba2.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.ssd_state_update import ssd_state_update

__all__ = ["ssd_scan", "ssd_state_update"]
