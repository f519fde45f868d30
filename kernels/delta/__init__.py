"""The gated delta rule."""

from blockstride.kernels.delta.gated_delta_rule import gated_delta_rule, gated_delta_rule_update

__all__ = ["gated_delta_rule", "gated_delta_rule_update"]
