"""In Triton."""

from blockstride.kernels.conv.gpu.causal_conv1d import causal_conv1d
from blockstride.kernels.conv.gpu.causal_conv1d_update import causal_conv1d_update

__all__ = ["causal_conv1d", "causal_conv1d_update"]
