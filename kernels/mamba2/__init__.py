"""The state space duality of Mamba-2.

Read `reference.py` first, then `ssd_scan.py` for prompts and `ssd_state_update.py` for decode
steps.
"""

from blockstride.kernels.mamba2.ssd_scan import ssd_scan
from blockstride.kernels.mamba2.ssd_state_update import ssd_state_update

__all__ = ["ssd_scan", "ssd_state_update"]
