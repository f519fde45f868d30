"""Attention over a paged cache."""

from blockstride.kernels.attention.attention_schedule import AttentionSchedule, attention_schedule
from blockstride.kernels.attention.paged_attention import paged_attention

__all__ = ["AttentionSchedule", "attention_schedule", "paged_attention"]
