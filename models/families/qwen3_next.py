"""Qwen3-Next: what Qwen 3.5 has with experts, and projections that are joined by key heads."""

from __future__ import annotations

from blockstride.models.families.experts import HasSharedExpert
from blockstride.models.families.keys import count, optional, switch
from blockstride.models.families.qwen3_5 import Qwen35
from blockstride.models.modules import DeltaNames


class Qwen3Next(HasSharedExpert, Qwen35):
    """Qwen3-Next (Alibaba 2025)."""

    names = DeltaNames({"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}, by_key_head=True)
    vocab_size = count(151936)
    hidden_size = count(2048)
    intermediate_size = count(5632)
    num_hidden_layers = count(48)
    num_key_value_heads = optional(2)
    num_experts = count(512)
    num_experts_per_tok = count(10)
    moe_intermediate_size = count(512)
    norm_topk_prob = switch(True)
