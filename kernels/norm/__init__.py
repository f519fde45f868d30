"""Normalisation of rows."""

from blockstride.kernels.norm.rms_norm import rms_norm

__all__ = ["rms_norm"]
