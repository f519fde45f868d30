"""In Triton."""

from blockstride.kernels.mamba2.gpu.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.gpu.ssd_state_update import ssd_state_update

__all__ = ["ssd_scan", "ssd_state_update"]
