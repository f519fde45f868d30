"""In Triton."""

from blockstride.kernels.attention.gpu.attention_schedule import attention_schedule
from blockstride.kernels.attention.gpu.paged_attention import paged_attention

__all__ = ["attention_schedule", "paged_attention"]
