"""The gated delta rule, with gates of heads or of channels.

Read `reference.py` first, then `gated_delta_rule.py`, which has prompts and decode steps.
"""

from blockstride.kernels.delta.gated_delta_rule import gated_delta_rule, gated_delta_rule_update

__all__ = ["gated_delta_rule", "gated_delta_rule_update"]
