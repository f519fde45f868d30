"""On CPUs."""

from blockstride.kernels.attention.cpu.paged_attention import attention_schedule, paged_attention

__all__ = ["attention_schedule", "paged_attention"]
