"""In Triton."""

from blockstride.kernels.norm.gpu.rms_norm import rms_norm

__all__ = ["rms_norm"]
