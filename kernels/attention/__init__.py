"""Attention over a paged cache: prompts, chunks of them, decode steps, and batches of all three.

Read `reference.py` first, then `paged_attention.py` and `attention_schedule.py`, the plan that the
layers of a step share. The implementations begin in `gpu/attention_kernel.py` and in
`cpu/paged_attention.py`.
"""

from blockstride.kernels.attention.attention_schedule import AttentionSchedule, attention_schedule
from blockstride.kernels.attention.paged_attention import paged_attention

__all__ = ["AttentionSchedule", "attention_schedule", "paged_attention"]
