"""On CPUs."""

from blockstride.kernels.conv.cpu.causal_conv1d import causal_conv1d, causal_conv1d_update

__all__ = ["causal_conv1d", "causal_conv1d_update"]
