"""On CPUs."""

from blockstride.kernels.attention.cpu.paged_attention import paged_attention

__all__ = ["paged_attention"]
