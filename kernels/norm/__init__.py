"""Normalisation of rows.

Read `reference.py` first, then `rms_norm.py`.
"""

from blockstride.kernels.norm.rms_norm import rms_norm

__all__ = ["rms_norm"]
