"""The selective scan of Mamba.

Read `reference.py` first, then `selective_scan.py` for prompts and `selective_state_update.py` for
decode steps.
"""

from blockstride.kernels.mamba1.selective_scan import selective_scan
from blockstride.kernels.mamba1.selective_state_update import selective_state_update

__all__ = ["selective_scan", "selective_state_update"]
