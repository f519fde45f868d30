"""On CPUs."""

from blockstride.kernels.norm.cpu.rms_norm import rms_norm

__all__ = ["rms_norm"]
