"""Short causal convolutions over channels, and their states.

Read `reference.py` first, then `causal_conv1d.py`, which has prompts and decode steps.
"""

from blockstride.kernels.conv.causal_conv1d import causal_conv1d, causal_conv1d_update

__all__ = ["causal_conv1d", "causal_conv1d_update"]
